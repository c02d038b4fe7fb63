package daemon_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

type hanging struct {
	dataplane.Dataplane
	hangs, applying *atomic.Bool
	looking         *atomic.Bool // nil means that Intact does not hang
	released        <-chan struct{}
}

func (h hanging) Unwrap() dataplane.Dataplane { return h.Dataplane }

func (h hanging) Apply(ctx context.Context, batch []dataplane.Change) error {
	if h.hangs.Load() {
		h.applying.Store(true)
		<-h.released
	}
	return h.Dataplane.Apply(ctx, batch)
}

func (h hanging) Counters() []dataplane.FrontendCount {
	if h.hangs.Load() {
		<-h.released
	}
	return h.Dataplane.Counters()
}

func (h hanging) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if h.hangs.Load() {
		<-h.released
	}
	inner, _ := dataplane.As[dataplane.ListsConnections](h.Dataplane)
	return inner.Connections(ctx, q, visit)
}

func (h hanging) Intact(ctx context.Context) (string, error) {
	if h.hangs.Load() && h.looking != nil {
		h.looking.Store(true)
		<-h.released
	}
	return h.Dataplane.Intact(ctx)
}

// TestAnswersWhileTheKernelHangs makes Apply and reading counters hang. Every request for a view
// must still be answered, with the last counts.
func TestAnswersWhileTheKernelHangs(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "two")
	var hangs, applying atomic.Bool
	released := make(chan struct{})
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{spare(config.UserspaceMode, func(dp dataplane.Dataplane) (dataplane.Dataplane, error) {
		return hanging{dp, &hangs, &applying, nil, released}, nil
	})}}
	n.write(web)
	n.start()
	t.Cleanup(func() { n.stop() })
	t.Cleanup(func() { close(released) })
	ask("127.40.0.1:8080")
	wait.For(t, time.Minute, "the connection to be counted", func() bool { return n.connections() == 1 })
	hangs.Store(true)
	n.write(web + strings.NewReplacer("services.web", "services.more", "127.40.0.1", "127.40.0.2").Replace(web))
	wait.For(t, time.Minute, "the apply to hang", applying.Load)
	for range 2 {
		n.answersAll(t, 1, true)
	}
}

// TestAnswersWhileDumpsHang makes dumps of counters, rules and conntrack hang in nftables mode.
// Every request for a view must still be answered, with the last counts.
func TestAnswersWhileDumpsHang(t *testing.T) {
	lab.New(t)
	answersWhileDumpsHang(t, config.NFTablesMode)
}

// TestIPVSAnswersWhileDumpsHang makes the same check as TestAnswersWhileDumpsHang, but in ipvs
// mode.
func TestIPVSAnswersWhileDumpsHang(t *testing.T) {
	lab.NeedIPVS(t)
	lab.New(t)
	answersWhileDumpsHang(t, config.IPVSMode)
}

func answersWhileDumpsHang(t *testing.T, name config.ModeName) {
	var hangs, looking atomic.Bool
	released := make(chan struct{})
	mode, _ := modes.Find(name)
	kernel := mode.New
	mode.New = func(ctx context.Context, c config.Config, log *slog.Logger) (dataplane.Dataplane, error) {
		dp, err := kernel(ctx, c, log)
		return hanging{dp, &hangs, new(atomic.Bool), &looking, released}, err
	}
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	n.configure(`mode = "userspace"`, fmt.Sprintf("mode = %q", name), strings.NewReplacer("127.40.0.1", "10.96.0.10", "127.40.1.1", "10.2.1.2").Replace(web))
	n.start()
	t.Cleanup(func() { n.stop() })
	t.Cleanup(func() { close(released) })
	hangs.Store(true)
	wait.For(t, 0, "a dump to hang", looking.Load)
	for range 6 {
		n.answersAll(t, 0, true)
	}
}

// TestAnswersWhileToolsHang makes the tools of iptables mode hang. Every request for a view must
// still be answered, with the last counts.
func TestAnswersWhileToolsHang(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables-nft")
	mode, _ := modes.Find(config.IPTablesMode)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	web := strings.NewReplacer("127.40.0.1", "10.96.0.10", "127.40.1.1", "10.2.1.2").Replace(web)
	write := func(services string) {
		n.configure(`mode = "userspace"`, `mode = "iptables"`, "[iptables]\nbackend = \"nft\"\n"+services)
	}
	write(web)
	n.start()
	t.Cleanup(func() { n.stop() })
	slow := t.TempDir()
	began := filepath.Join(slow, "began")
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"restore", "save"} {
			text := "#!/bin/sh\necho " + does + " >>" + began + "\nexec sleep 1000\n"
			if err := os.WriteFile(filepath.Join(slow, tool+"-nft-"+does), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", slow+":"+os.Getenv("PATH"))
	write(web + strings.NewReplacer("services.web", "services.more", "10.96.0.10", "10.96.0.11").Replace(web))
	wait.For(t, time.Minute, "a tool to hang", func() bool {
		text, _ := os.ReadFile(began)
		return strings.Contains(string(text), "restore")
	})
	n.answersAll(t, 0, false)
}

// cleansUp removes what kernel modes left behind when the test ends, because later tests run in the
// same namespace. It must be called before start.
func (n *node) cleansUp() {
	c := config.Default()
	c.RunDir, c.StateDir = filepath.Join(n.dir, "run"), filepath.Join(n.dir, "state")
	n.t.Cleanup(func() {
		for _, m := range n.modes {
			if _, err := m.Cleanup(context.Background(), c, false); err != nil {
				n.t.Errorf("cleanup of %s mode: error = %v, want none", m.Name, err)
			}
		}
	})
}

// answersAll requests every view of the node. Each answer must arrive within a second. If unlisted
// is true, the list of connections hangs, and must not block the other views.
func (n *node) answersAll(t *testing.T, connections uint64, unlisted bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	list := func() error { _, err := n.client.Connections(ctx, dataplane.ConnectionQuery{}); return err }
	asks := map[string]func() error{
		"status":    func() error { _, err := n.client.Status(ctx); return err },
		"services":  func() error { _, err := n.client.Services(ctx); return err },
		"endpoints": func() error { _, err := n.client.Endpoints(ctx); return err },
		"traffic": func() error {
			traffic, err := n.client.Traffic(ctx)
			if err == nil && traffic.Services[len(traffic.Services)-1].Connections != connections {
				t.Errorf("traffic = %+v, want the last counts", traffic.Services)
			}
			return err
		},
	}
	if unlisted {
		go func() { _ = list() }() // the request for the list fails when ctx is done
	} else {
		asks["conns"] = list
	}
	for what, ask := range asks {
		inTime(t, what, ask)
	}
	for _, path := range []string{"/", "/services/web", "/metrics", "/healthz"} {
		inTime(t, path, n.requestPage(path))
	}
}
