package tomlfile_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/statedir"
	"vipd/store/tomlfile"
)

func (w *world) run() store.Snapshot {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	log := slog.New(slog.NewTextHandler(w.Output(), nil))
	var last store.Snapshot
	kept := statedir.New(w.dir, func() {})
	err := tomlfile.New(tomlfile.Options{Main: w.path("vipd.toml"), StateDir: kept, Check: unknownTables, Log: log}).Watch(ctx, func(s store.Snapshot) {
		last = s
		cancel()
	})
	w.do(err)
	w.do(kept.Close())
	return last
}

// TestKeepsOverRestart makes mistakes in files, removes services, and restarts the source twice.
// The last valid services must be served, including removed services whose definitions a mistake
// may hide. When the mistakes are fixed, services without a definition must be removed.
func TestKeepsOverRestart(t *testing.T) {
	const vip = "[vips.\"10.96.0.1\"]\nhold = \"one\"\npreempt = \"1m\"\n"
	w := newWorld(t, map[string]string{
		"vipd.toml": "[store]\npath = \"d\"\n[defaults]\nscheduler = \"lc\"\nconnect_timeout = \"7s\"\n" + service("a", 1) + vip + service("z", 9),
		"d/b.toml":  service("b", 2) + service("c", 3) + "health = { type = \"http\", path = \"/x\" }\nendpoints = [{ address = \"10.2.0.1\", port = 1 }]\n",
		"d/e.toml":  service("e", 5),
		"d/f.toml":  service("f", 6),
	})
	good := w.run()
	bad := strings.NewReplacer("[\"10.96.0.", "[\"10.96.O.", "\"one\"", "\"won\"", "preempt = \"1m\"", "")
	w.write("vipd.toml", "[store]\npath = \"d\"\n[defaults]\nscheduler = \"none\"\n"+bad.Replace(service("a", 1)+vip))
	w.write("d/b.toml", service("b", 4)+bad.Replace(service("c", 3)))
	w.write("d/e.toml", "[services.e")
	w.do(os.Remove(w.path("d/f.toml")))
	for range 2 { // the second run reads the state that the first run has saved
		s := w.run()
		if got, want := strings.Split(describe(s), " |")[0], "a=1 b=4 c=3 e=5 f=6 z=9"; got != want || len(s.Problems) != 5 {
			t.Fatalf("state after a restart = %s, want %s and 5 problems", describe(s), want)
		}
		for _, name := range []balancer.Name{"a", "c", "e", "f"} {
			if before, after := good.Services.At(name).Origin, s.Services.At(name).Origin; before != after || after.Line == 0 {
				t.Errorf("after a restart, the Origin of service %s = %+v, want %+v", name, after, before)
			}
			if before, after := balancer.EncodeService(good.Services.At(name)), balancer.EncodeService(s.Services.At(name)); !reflect.DeepEqual(before, after) {
				t.Errorf("after a restart: service %s = %v, want %v", name, after, before)
			}
		}
		if b := s.Services.At("b"); b.Scheduler != balancer.LeastConn || b.ConnectTimeout != 7*time.Second {
			t.Errorf("after a restart: scheduler and connect timeout of b = %v, %v, want the defaults lc and 7s", b.Scheduler, b.ConnectTimeout)
		}
		addr := netip.MustParseAddr("10.96.0.1")
		if before, after := good.VIPs.At(addr), s.VIPs.At(addr); after == nil || fmt.Sprint(before.VIPPolicy, before.Given) != fmt.Sprint(after.VIPPolicy, after.Given) {
			t.Errorf("after a restart: settings of 10.96.0.1 = %v, want %v", after, before)
		}
	}
	w.write("vipd.toml", "[store]\npath = \"d\"\n"+service("a", 1))
	w.write("d/b.toml", service("b", 4))
	w.write("d/e.toml", "")
	if got, want := strings.Split(describe(w.run()), " |")[0], "a=1 b=4"; got != want {
		t.Errorf("state after the mistakes are fixed = %s, want %s", got, want)
	}
}

// TestKeptIsBroken truncates the saved state. It must be renamed to files.state.broken, and the
// service must still be served from its own file.
func TestKeptIsBroken(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": service("a", 1)})
	w.run()
	text, err := os.ReadFile(w.path("files.state"))
	w.do(err)
	for _, cut := range []int{0, 1, len(text) - 2, rand.IntN(len(text) - 1)} {
		w.write("files.state", string(text[:cut]))
		if got := describe(w.run()); got != "a=1" {
			t.Errorf("with %d of %d bytes of the saved state: state = %s, want a=1", cut, len(text), got)
		}
		if _, err := os.Stat(w.path("files.state.broken")); err != nil {
			t.Errorf("with %d of %d bytes of the saved state: files.state.broken: %v, want it to exist", cut, len(text), err)
		}
		_ = os.Remove(w.path("files.state.broken"))
	}
}
