package owner

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/cmd/internal/api"
	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// The addresses vip and vip6 are the VIPs of a group. The address taken belongs to another machine.
// The address aside is the only VIP on its device. Each host that is not on standby holds the VIP
// routed.
var (
	vip, vip6    = netip.MustParseAddr("10.9.0.100"), netip.MustParseAddr("fd09::100")
	taken, aside = netip.MustParseAddr("10.9.0.99"), netip.MustParseAddr("10.8.0.100")
	routed       = netip.MustParseAddr("10.96.0.1")
)

// gateway is a host that may own VIPs.
type gateway struct {
	t      *testing.T
	ns     *lab.NS
	relays []*etcdkit.Relay // the relays to the etcd members
	bin    string
	dir    string
	daemon *lab.Cmd // vipd
	cmd    *lab.Cmd // vipd owner
	ended  context.Context
	gone   context.Context // vipd
	http   *http.Client
}

// fleet consists of three gateways on a LAN with a client. A second network connects only the
// gateways.
type fleet struct {
	t   *testing.T
	lab *lab.Lab
	// third also connects the gateways. At first, it has no VIPs.
	lan, other, third *lab.Bridge
	client            *lab.NS
	hosts             []*gateway
	etcd              *etcdkit.Cluster
	mode              string
	bin               string // the directory that contains the programs
}

// newFleet starts the hosts. The argument more contains configuration lines to insert before and
// after the usual lines.
func newFleet(t *testing.T, mode string, o etcdkit.Options, more ...string) *fleet {
	t.Helper()
	return newFleetIn(t, lab.New(t), mode, o, more...)
}

// newFleetIn is like newFleet, but builds the fleet in the lab l.
func newFleetIn(t *testing.T, l *lab.Lab, mode string, o etcdkit.Options, more ...string) *fleet {
	t.Helper()
	bin := program.Bin(t)
	f := &fleet{t: t, lab: l, bin: bin, lan: l.Bridge("lan"), other: l.Bridge("other"), third: l.Bridge("third"), client: l.Add("client"), etcd: etcdkit.Start(t, o), mode: mode}
	f.lan.Join(f.client, "10.9.0.50/16", "fd09::50/64", taken.String()+"/32")
	for i := range 3 {
		g := f.join(i+1, f.etcd, more...)
		g.boot()
		f.hosts = append(f.hosts, g)
	}
	return f
}

// join adds another host that uses the etcd cluster c. The argument more contains configuration
// lines to insert before and after the usual lines. It starts no programs.
func (f *fleet) join(number int, c *etcdkit.Cluster, more ...string) *gateway {
	f.t.Helper()
	ns := f.lab.Add(fmt.Sprintf("gw%d", number))
	f.lan.Join(ns, fmt.Sprintf("10.9.0.%d/16", 10+number), fmt.Sprintf("fd09::%d/64", 10+number))
	f.other.Join(ns, fmt.Sprintf("10.8.0.%d/24", 10+number), fmt.Sprintf("fd08::%d/64", 10+number))
	f.third.Join(ns, fmt.Sprintf("10.7.0.%d/24", 10+number))
	respond(f.t, ns)
	g := &gateway{t: f.t, ns: ns, bin: f.bin, dir: f.t.TempDir()}
	var endpoints []string
	for i, m := range c.Members {
		if err := ns.Do(func() error {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 2379+i))
			if err == nil {
				g.relays = append(g.relays, etcdkit.NewRelayOn(f.t, l, m.Addr()))
				endpoints = append(endpoints, fmt.Sprintf("%q", "http://"+l.Addr().String()))
			}
			return err
		}); err != nil {
			f.t.Fatal(err)
		}
	}
	g.http = ownerClient(g.dir)
	more = append(more, "", "")
	text := fmt.Sprintf("etcd.endpoints = [%s]\n", strings.Join(endpoints, ", ")) + more[0] + fmt.Sprintf(configuration, ns.Name, 10+number, f.mode) + more[1]
	if err := os.WriteFile(g.config(), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if text, err := os.ReadFile(filepath.Join(g.dir, "log")); f.t.Failed() && err == nil {
			f.t.Logf("%s says:\n%s", ns.Name, text)
		}
	})
	return g
}

// ownerClient returns a client for the vipd owner whose host has the directory dir.
func ownerClient(dir string) *http.Client {
	return &http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "run", api.OwnerSocket))
	}}}
}

// boot starts all of the host's programs. It first waits until the previous programs have exited.
func (g *gateway) boot() {
	g.t.Helper()
	g.start()
	g.serve()
}

// serve starts vipd. It first waits until the previous vipd has exited.
func (g *gateway) serve() {
	g.t.Helper()
	if g.daemon != nil {
		<-g.gone.Done()
	}
	g.daemon, g.gone = g.run("vipd", "--config", g.config())
}

// configuration is a host's configuration file. Its limits permit long pauses of vipd, so VIPs do
// not move just because the machine is busy.
const configuration = `
node = "%[1]s"
mode = "%[3]s"
state_dir = "state"
run_dir = "run"
store.kind = "etcd"
addresses.allowed_endpoints = ["10.9.0.0/24"]
api.socket = "run/vipd.sock"
api.http = ""
[ownership]
enabled = true
restart_grace = "10m"
announce_every = "1s"
reach = ["10.9.0.50"]
listen = ["10.9.0.%[2]d", "10.8.0.%[2]d"]
[vips."10.9.0.100"]
hold = "one"
group = "pair"
[vips."fd09::100"]
hold = "one"
group = "pair"
[vips."10.9.0.99"]
hold = "one"
[vips."10.8.0.100"]
hold = "one"
[vips."10.96.0.1"]
withdraw = "no_endpoint"
[services.routed]
vips = ["10.96.0.1"]
ports = [{ port = 9000, target_port = 9001 }]
endpoints = [{ address = "10.9.0.%[2]d" }]
[services.probe]
vips = ["10.9.0.100", "fd09::100"]
ports = [{ name = "probe", port = 9000, target_port = 9001, protocol = "udp" }, { name = "talk", port = 9000, target_port = 9001 }]
endpoints = [{ address = "10.9.0.%[2]d" }, { address = "fd09::%[2]d" }]
`

// start starts vipd owner. It first waits until the previous owner has exited.
func (g *gateway) start() {
	g.t.Helper()
	if g.cmd != nil {
		<-g.ended.Done()
	}
	g.cmd, g.ended = g.run("vipd", "owner", "--config", g.config())
}

func (g *gateway) config() string { return filepath.Join(g.dir, "vipd.toml") }

// run starts one of the built programs on the host.
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

// vipctl runs vipctl on the host, and returns its output.
func (g *gateway) vipctl(args ...string) string {
	g.t.Helper()
	out, err := g.ns.Command(g.t.Context(), filepath.Join(g.bin, "vipctl"), append(args, "--config", g.config())...).CombinedOutput()
	if err != nil {
		g.t.Fatalf("vipctl %v: error = %v\n%s", args, err, out)
	}
	return string(out)
}

// move moves a VIP or a group with vipctl. It retries, because the owner may be late on a busy
// machine.
func (g *gateway) move(what string, more ...string) {
	g.t.Helper()
	g.vipctl(append([]string{"vip", "move", what, "--timeout", wait.Patience.String()}, more...)...)
}

// waitForVIP waits until the host has the routed VIP (if want is true) or no longer has it.
func (g *gateway) waitForVIP(want bool) {
	g.t.Helper()
	wait.For(g.t, wait.Patience, fmt.Sprintf("%s to hold %s: %t", g.ns.Name, routed, want), func() bool {
		return strings.Contains(g.ns.Exec("ip", "-o", "addr"), " "+routed.String()+"/") == want
	})
}

// bound returns the VIPs on the host, or nil if its owner does not answer.
func (g *gateway) bound() []netip.Addr {
	if s := g.status(); s != nil {
		return s.Bound
	}
	return nil
}

// problem reports whether the host's owner reports a problem that contains the text words.
func (g *gateway) problem(words string) bool {
	s := g.status()
	return s != nil && strings.Contains(strings.Join(s.Problems, "\n"), words)
}

// event waits until the host's owner has reported an event that contains the text words.
func (g *gateway) event(words string) {
	g.t.Helper()
	wait.For(g.t, wait.Patience, "the event that has "+words, func() bool {
		s := g.status()
		return s != nil && slices.ContainsFunc(s.Events, func(e api.OwnerEvent) bool { return strings.Contains(e.Text, words) })
	})
}

// status returns the status of the host's owner, or nil if it does not answer.
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

// answer returns the status of a running owner. It retries, because a busy machine may delay the
// answer.
func (g *gateway) answer() (s *api.OwnerStatus) {
	g.t.Helper()
	wait.For(g.t, wait.Patience, "the owner on "+g.ns.Name+" to answer", func() bool { s = g.status(); return s != nil })
	return s
}

// late returns how long an owner waited for a processor at most. After a long wait, the test can't
// judge the fleet.
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
		if slices.Contains(g.bound(), vip) {
			return g
		}
	}
	return nil
}

func (f *fleet) sessions() (all []string) {
	f.t.Helper()
	for _, g := range f.hosts {
		all = append(all, g.answer().Session)
	}
	return all
}

// takeovers returns how often hosts have acquired VIPs. All hosts must be running.
func (f *fleet) takeovers() (n int) {
	f.t.Helper()
	for _, g := range f.hosts {
		for _, times := range g.answer().Took {
			n += times
		}
	}
	return n
}

// waitForOwner waits until one host owns the VIP and the two other hosts could own it.
func (f *fleet) waitForOwner() (owner *gateway) {
	f.t.Helper()
	wait.For(f.t, wait.Patience, "an owner, and two more that could be", func() bool {
		open := 0
		for _, g := range f.hosts {
			if s := g.status(); s != nil && s.Gate == "open" && len(s.Confirmed) == 2 && s.VIPs[vip].Cannot == "" {
				open++
			}
		}
		owner = f.owner()
		return open == 3 && owner != nil
	})
	return owner
}

// probe queries both VIPs of the group over UDP and TCP, from the client and from the hosts in
// others. It returns when the client has received an answer to each kind of query. Then the
// measurement starts.
func (f *fleet) probe(others ...*gateway) (all probers) {
	var hosts []*lab.NS
	for _, g := range append(others, f.hosts...) {
		hosts = append(hosts, g.ns)
	}
	for own, vip := range map[string]netip.Addr{"10.9.0.50": vip, "fd09::50": vip6} {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			all = append(all, probe(f.t, f.client, "lan", netip.MustParseAddr(own), vip, protocol, hosts))
		}
	}
	wait.For(f.t, wait.Patience, "answers", func() bool {
		return !slices.ContainsFunc(all, func(p *prober) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.client) == 0
		})
	})
	return all
}

// answers waits until the owner answers a client's queries to VIPs. The owner's own ports must not
// answer on the VIPs.
func (f *fleet) answers(vips ...netip.Addr) {
	f.t.Helper()
	for _, v := range vips {
		wait.For(f.t, wait.Patience, fmt.Sprintf("the owner to answer for %s", v), func() bool {
			owner := f.owner() // if the owner is busy, VIPs may move to another host
			return owner != nil && ask(f.t, f.client, netip.AddrPortFrom(v, probePort)) == owner.ns.Name
		})
		if who := ask(f.t, f.client, netip.AddrPortFrom(v, ownPort)); who != "" {
			f.t.Errorf("host whose own port answers on %s = %s, want none", v, who)
		}
	}
}

// talk opens a connection to the VIP, and checks that it works.
func (f *fleet) talk() (c net.Conn) {
	f.t.Helper()
	lab.Eventually(f.t, 10*time.Second, "a connection", func() (err error) {
		if c, err = f.client.Dial(f.t.Context(), "tcp", netip.AddrPortFrom(vip, probePort).String()); err == nil {
			if err = echo(c); err != nil {
				_ = c.Close()
			}
		}
		return err
	})
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo sends text on a connection and reads the echo.
func echo(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(wait.Bound(0)))
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}
