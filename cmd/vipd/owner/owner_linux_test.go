package owner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// vip and vip6 are a group, and taken is an address that a stranger has.
var vip, vip6, taken = netip.MustParseAddr("10.9.0.100"), netip.MustParseAddr("fd09::100"), netip.MustParseAddr("10.9.0.99")

type gateway struct {
	t     *testing.T
	ns    *lab.NS
	relay *etcdkit.Relay
	bin   string
	dir   string
	cmd   *lab.Cmd
	ended context.Context
	http  *http.Client
}

type fleet struct {
	t      *testing.T
	client *lab.NS
	hosts  []*gateway
	etcd   *etcdkit.Cluster
}

func newFleet(t *testing.T) *fleet {
	l, bin := lab.New(t), program.Bin(t)
	f := &fleet{t: t, client: l.Add("client"), etcd: etcdkit.Start(t, etcdkit.Options{})}
	lan := l.Bridge("lan")
	lan.Join(f.client, "10.9.0.50/16", "fd09::50/64", taken.String()+"/32")
	other := l.Bridge("other")
	for i := range 3 {
		ns := l.Add(fmt.Sprintf("gw%d", i+1))
		lan.Join(ns, fmt.Sprintf("10.9.0.%d/16", 11+i), fmt.Sprintf("fd09::%d/64", 11+i))
		other.Join(ns, fmt.Sprintf("10.8.0.%d/24", 11+i))
		respond(t, ns)
		g := &gateway{t: t, ns: ns, bin: bin, dir: t.TempDir()}
		if err := ns.Do(func() error {
			l, err := net.Listen("tcp", "127.0.0.1:2379")
			if err == nil {
				g.relay = etcdkit.NewRelayOn(t, l, f.etcd.Members[0].Addr())
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		g.http = &http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(g.dir, "run", api.OwnerSocket))
		}}}
		f.hosts = append(f.hosts, g)
		if err := os.WriteFile(g.config(), fmt.Appendf(nil, configuration, ns.Name, 11+i), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if text, err := os.ReadFile(filepath.Join(g.dir, "log")); t.Failed() && err == nil {
				t.Logf("%s says:\n%s", ns.Name, text)
			}
		})
		g.start()
		g.run("vipd", "--config", g.config())
	}
	return f
}

// configuration is that of a host. On a busy machine vipd may be silent for long, and its VIPs go nowhere for it.
const configuration = `
node = "%[1]s"
mode = "nftables"
state_dir = "state"
run_dir = "run"
store.kind = "etcd"
api.socket = "run/vipd.sock"
api.http = ""
[ownership]
enabled = true
restart_grace = "10m"
announce_every = "1s"
listen = ["10.9.0.%[2]d", "10.8.0.%[2]d"]
[vips."10.9.0.100"]
hold = "one"
group = "pair"
[vips."fd09::100"]
hold = "one"
group = "pair"
[vips."10.9.0.99"]
hold = "one"
[services.probe]
vips = ["10.9.0.100", "fd09::100"]
ports = [{ name = "probe", port = 9000, target_port = 9001, protocol = "udp" }, { name = "talk", port = 9000, target_port = 9001 }]
endpoints = [{ address = "10.9.0.%[2]d" }, { address = "fd09::%[2]d" }]
`

// start starts vipd owner, after the one before has ended.
func (g *gateway) start() {
	g.t.Helper()
	if g.cmd != nil {
		<-g.ended.Done()
	}
	g.cmd, g.ended = g.run("vipd", "owner", "--config", g.config())
}

func (g *gateway) config() string { return filepath.Join(g.dir, "vipd.toml") }

// run starts a built program on the host.
func (g *gateway) run(name string, args ...string) (*lab.Cmd, context.Context) {
	g.t.Helper()
	cmd := g.ns.Command(g.t.Context(), filepath.Join(g.bin, name), args...)
	log, err := os.OpenFile(filepath.Join(g.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		g.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = cmd.Wait(); cancel() }()
	g.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ctx.Done()
		_ = log.Close()
	})
	return cmd, ctx
}

// vipctl runs vipctl on the host, and returns what it prints.
func (g *gateway) vipctl(args ...string) string {
	g.t.Helper()
	out, err := g.ns.Command(g.t.Context(), filepath.Join(g.bin, "vipctl"), append(args, "--config", g.config())...).CombinedOutput()
	if err != nil {
		g.t.Fatalf("vipctl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// status is how the owner on the host is; nil means it does not answer.
func (g *gateway) status() *api.OwnerStatus {
	r, err := g.http.Get("http://owner/status")
	if err != nil {
		return nil
	}
	defer r.Body.Close()
	var s api.OwnerStatus
	if json.NewDecoder(r.Body).Decode(&s) != nil {
		return nil
	}
	return &s
}

// late is the longest that an owner had to wait for a processor: this machine is too busy then to tell who is alive.
func (f *fleet) late() (most time.Duration) {
	for _, g := range f.hosts {
		if s := g.status(); s != nil {
			most = max(most, time.Duration(s.Late*float64(time.Second)))
		}
	}
	return most
}

func (f *fleet) owner() *gateway {
	for _, g := range f.hosts {
		if s := g.status(); s != nil && slices.Contains(s.Bound, vip) {
			return g
		}
	}
	return nil
}

func (f *fleet) settled() *gateway {
	f.t.Helper()
	wait.For(f.t, etcdkit.Patience, "an owner, and two more that could be", func() bool {
		open := 0
		for _, g := range f.hosts {
			if s := g.status(); s != nil && s.Gate == "open" && len(s.Confirmed) == 2 {
				open++
			}
		}
		return open == 3 && f.owner() != nil
	})
	return f.owner()
}

func (f *fleet) probe() *prober {
	var hosts []*lab.NS
	for _, g := range f.hosts {
		hosts = append(hosts, g.ns)
	}
	return probe(f.t, f.client, "lan", netip.MustParseAddr("10.9.0.50"), vip, hosts)
}

// answers waits until the owner answers for VIPs to who asks as a client does, and at no port of its own.
func (f *fleet) answers(vips ...netip.Addr) {
	f.t.Helper()
	owner := f.owner()
	for _, v := range vips {
		wait.For(f.t, etcdkit.Patience, fmt.Sprintf("%s answers for %s", owner.ns.Name, v), func() bool {
			return ask(f.t, f.client, netip.AddrPortFrom(v, probePort)) == owner.ns.Name
		})
		if who := ask(f.t, f.client, netip.AddrPortFrom(v, ownPort)); who != "" {
			f.t.Errorf("a port of %s itself is open on %s", who, v)
		}
	}
}

// talk opens a connection to the VIP.
func (f *fleet) talk() (c net.Conn) {
	f.t.Helper()
	lab.Eventually(f.t, 10*time.Second, "a connection", func() (err error) {
		if c, err = f.client.Dial(f.t.Context(), "tcp", netip.AddrPortFrom(vip, probePort).String()); err == nil {
			if err = said(c); err != nil {
				_ = c.Close()
			}
		}
		return err
	})
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// said says something on a connection, which comes back.
func said(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(wait.Bound(0)))
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// TestOneOwner breaks the owner of a VIP in turn: another one answers soon, and never both.
func TestOneOwner(t *testing.T) {
	f := newFleet(t)
	if g := f.settled(); !strings.Contains(g.vipctl("get", "vips"), g.ns.Name) {
		t.Errorf("%s is the owner, and vipctl get vips says\n%s", g.ns.Name, g.vipctl("get", "vips"))
	}
	nft := func(commands string) func(*gateway) { return func(g *gateway) { g.ns.Exec("nft", commands) } }
	signal := func(s os.Signal) func(*gateway) { return func(g *gateway) { _ = g.cmd.Process.Signal(s) } }
	for _, c := range []struct {
		name        string
		fault, mend func(*gateway)
		moves       bool
	}{
		{"cut from its peers", nft("add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in udp dport 9898 drop"), nft("delete table inet cut"), false},
		{"nft flush ruleset", nft("flush ruleset"), func(*gateway) {}, false},
		{"LAN lost", nft("add table netdev cut; add chain netdev cut in { type filter hook ingress device lan priority -510; policy drop; }; " +
			"add chain netdev cut out { type filter hook egress device lan priority -510; policy drop; }"), nft("delete table netdev cut"), true},
		{"drain", func(g *gateway) { g.vipctl("drain", "--node", g.ns.Name) }, func(g *gateway) { g.vipctl("undrain", "--node", g.ns.Name) }, true},
		{"cut from etcd", func(g *gateway) { g.relay.Cut() }, func(g *gateway) { g.relay.Heal() }, false},
		{"etcd frozen", func(*gateway) { f.etcd.Members[0].Pause() }, func(*gateway) { f.etcd.Members[0].Resume() }, false},
		{"vip move", func(g *gateway) { g.vipctl("vip", "move", vip.String()) }, func(*gateway) {}, true},
		{"node standby", func(g *gateway) { g.vipctl("node", "standby", g.ns.Name) }, func(g *gateway) { g.vipctl("node", "resume", g.ns.Name) }, true},
		{"kill -9", signal(syscall.SIGKILL), (*gateway).start, true},
		{"SIGTERM", signal(syscall.SIGTERM), (*gateway).start, true},
		{"stopped", signal(syscall.SIGSTOP), signal(syscall.SIGCONT), true},
	} {
		g := f.settled()
		talk := f.talk()
		p := f.probe()
		c.fault(g)
		if c.moves {
			wait.For(t, etcdkit.Patience, "another owner after "+c.name, func() bool { o := f.owner(); return o != nil && o != g })
		} else {
			time.Sleep(time.Second) // in which nothing may move: longer than a session is confirmed without anybody
			if late := f.late(); f.owner() != g && late < 100*time.Millisecond {
				t.Errorf("%s: the VIP moved, though no owner was later than %s", c.name, late)
			}
		}
		c.mend(g)
		f.settled() // whoever was stopped has had the time to answer again
		f.answers(vip, vip6)
		if err := said(talk); c.moves != errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: a connection that was open meets %v", c.name, err)
		}
		gap, dual := p.gap()
		t.Logf("%s: nobody answered for %s", c.name, gap.Round(time.Millisecond))
		if len(dual) > 0 {
			t.Errorf("%s: two hosts answered %d questions: %v", c.name, len(dual), dual[0])
		}
		if gap > wait.Bound(0) {
			t.Errorf("%s: nobody answered for %s", c.name, gap)
		}
	}

	// Strangers: an address that one has is not taken, until it is free; and one that says it has the VIP is found.
	if g := f.settled(); slices.ContainsFunc(f.hosts, func(g *gateway) bool { return slices.Contains(g.status().Bound, taken) }) ||
		!slices.Contains(g.status().Unowned, taken) || !strings.Contains(strings.Join(g.status().Problems, "\n"), taken.String()+" is not taken: another host has it") {
		t.Errorf("%s is taken, though the client has it", taken)
	}
	f.client.DelAddr("lan", taken.String()+"/32")
	wait.For(t, etcdkit.Patience, "the address that was a stranger's", func() bool {
		return slices.ContainsFunc(f.hosts, func(g *gateway) bool { s := g.status(); return s != nil && slices.Contains(s.Bound, taken) })
	})
	f.many()
	g := f.owner()
	f.client.AddAddr("lan", vip.String()+"/32")
	wait.For(t, etcdkit.Patience, "a rival", func() bool {
		s := g.status()
		return slices.ContainsFunc(s.Rivals, func(r api.OwnerRival) bool { return r.VIP == vip && r.Node == "" }) &&
			strings.Contains(strings.Join(s.Problems, "\n"), "another host answers for "+vip.String())
	})
}

// many gives the hosts 1,000 VIPs, and kills one of them: the others take its share.
func (f *fleet) many() {
	f.t.Helper()
	n := wait.Load(1000)
	var more strings.Builder
	for i := range n {
		fmt.Fprintf(&more, "[vips.\"10.9.%d.%d\"]\nhold = \"one\"\n", 1+i/250, 1+i%250)
	}
	for _, g := range f.hosts {
		text, err := os.ReadFile(g.config())
		if err == nil {
			err = os.WriteFile(g.config(), append(text, more.String()...), 0o600)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	has := func(hosts []*gateway) (all int) {
		for _, g := range hosts {
			if s := g.status(); s != nil {
				all += len(s.Bound)
			}
		}
		return all
	}
	wait.For(f.t, etcdkit.Patience, "many VIPs to have owners", func() bool { return has(f.hosts) == n+3 })
	f.settled()
	g := slices.MaxFunc(f.hosts, func(a, b *gateway) int { return len(a.status().Bound) - len(b.status().Bound) })
	others := slices.DeleteFunc(slices.Clone(f.hosts), func(o *gateway) bool { return o == g })
	share := len(g.status().Bound)
	began := time.Now()
	_ = g.cmd.Process.Kill()
	wait.For(f.t, etcdkit.Patience, "the VIPs of a host that was killed", func() bool { return has(others) == n+3 })
	f.t.Logf("%d VIPs on 3 hosts: the %d of one that was killed have other owners after %s", n, share, time.Since(began).Round(time.Millisecond))
}
