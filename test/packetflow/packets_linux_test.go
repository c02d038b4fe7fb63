package packetflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// mode is a vipd mode, and the kind of node that it runs on.
type mode struct {
	name string
	host host.Options
	open func(t *testing.T) dataplane.Dataplane
	// plan returns vipctl plan's output for frontends. If nil, the mode has no iptables rules.
	plan func(frontends []*balancer.Frontend) string
	// drops reports whether the node's own firewall drops by default.
	drops bool
}

// TestPackets sends real packets through every mode. Clients must get the results in the tables.
func TestPackets(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) { m.holds(t) })
	}
}

// TestIPVSPackets makes the same check as TestPackets, but in ipvs mode, which few kernels have.
func TestIPVSPackets(t *testing.T) {
	lab.NeedIPVS(t)
	ipvsMode().holds(t)
}

func (m mode) holds(t *testing.T) {
	lab.Need(t, "iptables", "ip6tables", "conntrack")
	w := newWorld(t, m)
	for _, s := range readSections(t) {
		t.Run(s.name, func(t *testing.T) {
			d := w.apply(t, s)
			var silent sync.WaitGroup // clients without an answer wait in parallel
			for _, r := range s.rows {
				if _, literal := netip.ParseAddrPort(r.to); literal == nil && m.drops {
					continue // the node then drops packets for ports without a service, which is correct
				}
				for _, network := range []string{"tcp", "udp"} {
					check := func() {
						wrong := w.check(r, network)
						if wrong == "" {
							wrong = w.explained(r, network)
						}
						if wrong != "" {
							t.Errorf("%s, %s: %s", r, network, wrong)
						}
					}
					if r.verdict == dropped || r.verdict == lost {
						silent.Go(check)
					} else {
						check()
					}
				}
			}
			m.asPlanned(t, d)
			silent.Wait()
		})
	}
}

// asPlanned checks that the mode's rules in the kernel equal its plan.
func (m mode) asPlanned(t *testing.T, d balancer.Desired) {
	t.Helper()
	if m.plan == nil {
		return
	}
	var frontends []*balancer.Frontend
	for _, f := range d.Frontends.All() {
		frontends = append(frontends, f)
	}
	text := m.plan(frontends)
	planned, present := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-A ") {
			planned[plain(line)] = true
		}
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		out, err := exec.Command(tool+"-"+string(m.host.Variant)+"-save", "-t", "nat").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			line = plain(line)
			if present[line] = true; ofServices.MatchString(line) && !planned[line] {
				t.Errorf("rule in the kernel = %s, want only planned rules", line)
			}
		}
	}
	for line := range planned {
		if !present[line] {
			t.Errorf("planned rule is missing from the kernel: %s", line)
		}
	}
}

// ofServices matches rules that belong to services.
var ofServices = regexp.MustCompile(`^-A VIPD-(SERVICES|[0-9a-f]+[.:]|[ANE0-9]+-)`)

// plain returns a rule without its comment, and with a probability rounded to the kernel's 31 bits.
func plain(line string) string {
	return probability.ReplaceAllString(comment.ReplaceAllString(strings.TrimSpace(line), ""), "$1")
}

var (
	comment     = regexp.MustCompile(` -m comment --comment ("[^"]*"|\S+)`)
	probability = regexp.MustCompile(`(--probability 0\.[0-9]{8})[0-9]*`)
)

// world is the network of flows.md, with a mode running on the node.
type world struct {
	t        *testing.T
	dp       dataplane.Dataplane
	host     *host.Host
	hosts    map[string]*lab.NS
	engine   *dataplane.Engine
	caps     balancer.Capabilities
	revision int64
	port     atomic.Uint32 // the port of the last UDP client; each client has a new port, because an old port would reuse its flow
}

func newWorld(t *testing.T, m mode) *world {
	l := lab.New(t)
	w := &world{t: t, hosts: map[string]*lab.NS{"local": l.Host()}}
	for _, link := range links() {
		if len(link.hosts) == 1 || link.dev == "far" {
			w.plug(l, link)
		} else {
			w.join(l, link)
		}
	}
	w.hosts["stranger"] = w.hosts["far"]
	if m.drops {
		dropAll(t, l.Host())
	}
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	l.Host().Sysctl("net.ipv6.conf.all.forwarding", "1")
	for _, name := range servers() {
		for _, like := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			for _, network := range []string{"tcp", "udp"} {
				w.hosts[name].Echo(network, name, netip.AddrPortFrom(addressOf(name, like), 8080))
			}
		}
	}
	w.start(t, m)
	return w
}

// dropAll makes the node drop everything that no rule accepts, except neighbor discovery and lo,
// which no firewall drops.
func dropAll(t *testing.T, n *lab.NS) {
	set := func(do, policy string) {
		for _, tool := range []string{"iptables", "ip6tables"} {
			n.Exec(tool, "-w", do, "INPUT", "-i", "lo", "-j", "ACCEPT")
			n.Exec(tool, "-w", "-P", "INPUT", policy)
			n.Exec(tool, "-w", "-P", "FORWARD", policy)
		}
		n.Exec("ip6tables", "-w", do, "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT")
	}
	set("-A", "DROP")
	t.Cleanup(func() { set("-D", "ACCEPT") })
}

// plug connects the node to one namespace that represents all hosts on the link.
func (w *world) plug(l *lab.Lab, link link) {
	ns := l.Add(link.dev)
	l.Link(l.Host(), ns, link.own[0].String(), "", link.own[1].String(), "")
	for _, h := range link.hosts {
		for i, a := range h.addrs {
			ns.AddAddr("host", netip.PrefixFrom(a, link.own[i].Bits()).String())
		}
		w.hosts[h.name] = ns
	}
	ns.Default(link.own[0].Addr().String(), link.own[1].Addr().String())
}

// join connects the node and the hosts on the link with a switch.
func (w *world) join(l *lab.Lab, link link) {
	bridge := l.Bridge(link.dev)
	bridge.Join(l.Host(), link.own[0].String(), link.own[1].String())
	for _, h := range link.hosts {
		ns := l.Add(h.name)
		bridge.Join(ns, netip.PrefixFrom(h.addrs[0], link.own[0].Bits()).String(), netip.PrefixFrom(h.addrs[1], link.own[1].Bits()).String())
		ns.Default(link.own[0].Addr().String(), link.own[1].Addr().String())
		w.hosts[h.name] = ns
	}
}

// start runs an engine until the test ends.
func (w *world) start(t *testing.T, m mode) {
	t.Helper()
	dp := m.open(t)
	h, err := host.New(m.host)
	if err != nil {
		t.Fatal(err)
	}
	w.dp, w.host, w.caps = dp, h, dp.Capabilities()
	w.engine = dataplane.NewEngine(dataplane.Options{
		Dataplane: dp, Host: h, Log: slog.New(slog.DiscardHandler), MinInterval: time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		stop, end := context.WithTimeout(context.Background(), wait.Scaled(30*time.Second))
		defer end()
		if err := errors.Join(<-done, dp.Close(stop, false), h.Release(stop), h.Close()); err != nil {
			t.Errorf("engine: error = %v, want none", err)
		}
	})
}

// apply replaces the services with a section's services, and returns the compiled state.
func (w *world) apply(t *testing.T, s section) balancer.Desired {
	t.Helper()
	d := s.compile(w.caps)
	w.revision++
	d.Revision = balancer.Revision{Store: w.revision, Seen: time.Now()}
	w.engine.Set(d)
	lab.Eventually(t, 30*time.Second, "carrying out "+s.name, func() error {
		if s := w.engine.Status(); !s.Ready || s.Applied.Store < w.revision || len(s.Failing) > 0 || s.LastError != "" {
			return fmt.Errorf("applied revision = %d of %d, failing frontends = %d, last error = %q", s.Applied.Store, w.revision, len(s.Failing), s.LastError)
		}
		return nil
	})
	return d
}

// atOnce is how long a busy machine may take for an immediate reaction.
var atOnce = wait.Bound(0)

const (
	silence = 250 * time.Millisecond // how long a client waits if it must not get an answer
	// enough connections reach every server that has a share of a quarter, except once in 10^12
	// runs.
	enough = 100
	// fair is the number of connections with which shares are compared. By chance, a share is off
	// by more than deviations standard deviations once in 10^9 runs.
	fair, deviations = 100, 6
)

// check describes how a row differs from the result that its client gets, or returns "" if they are
// the same.
func (w *world) check(r row, network string) string {
	switch r.verdict {
	case refused:
		if a, err := w.ask(r, network, atOnce); !errors.Is(err, unix.ECONNREFUSED) && !(network == "tcp" && errors.Is(err, unix.ECONNRESET)) {
			return fmt.Sprintf("%+v, %v; want it refused", a, err)
		}
		return w.remembered(r, network)
	case lost:
		if !w.caps.KeepsSource { // Compile reports a problem for this case, and no reply is lost
			if _, err := w.ask(r, network, atOnce); err != nil {
				return fmt.Sprintf("%v, want an answer: the mode can't keep the source", err)
			}
			return ""
		}
		fallthrough
	case dropped:
		a, err := w.ask(r, network, silence)
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Sprintf("%+v, %v; want silence", a, err)
		}
		return ""
	}
	return w.checkServed(r, network)
}

// remembered describes a conntrack entry for a local connection that a service refused, or returns
// "". While such an entry exists, new connections from the same port are also refused, even if a
// service now serves them.
func (w *world) remembered(r row, network string) string {
	to, err := r.destination()
	if _, literal := netip.ParseAddrPort(r.to); err != nil || literal == nil || r.client != "local" || network != "tcp" {
		return ""
	}
	out, err := exec.Command("conntrack", "-L", "-p", network, "--orig-dst", to.Addr().String(), "--orig-port-dst", fmt.Sprint(to.Port())).Output()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "[UNREPLIED] src="+to.Addr().String()+" ") { // the connection was not translated to an endpoint
			return "it is refused, and remembered: " + line
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// checkServed describes a wrong answer to a row's client, or returns "".
func (w *world) checkServed(r row, network string) string {
	seen := map[string]bool{}
	for i := 0; i < enough && (len(seen) < len(r.answers) || i < 6); i++ {
		a, err := w.ask(r, network, atOnce)
		if err != nil {
			return fmt.Sprintf("%v, want an answer by %v", err, r.names())
		}
		if seen[a.Server] = true; r.answers[a.Server] == 0 || r.stays && len(seen) > 1 {
			return fmt.Sprintf("%v answer, want %v", seen, r.names())
		}
		if wrong := w.source(r, a); wrong != "" {
			return wrong
		}
		if r.stays && i == 5 {
			return ""
		}
	}
	if len(seen) < len(r.answers) {
		return fmt.Sprintf("only %v answer of %v", seen, r.names())
	}
	if !r.stays {
		return w.checkShares(r, network)
	}
	return ""
}

// checkShares names a server that answers too often or too rarely, if shares differ.
func (w *world) checkShares(r row, network string) string {
	total, differ := 0, false
	for _, share := range r.answers {
		total += share
		differ = differ || share != r.answers[r.names()[0]]
	}
	if !differ {
		return ""
	}
	n, got := wait.Load(fair), map[string]int{}
	for range n {
		a, err := w.ask(r, network, atOnce)
		if err != nil {
			return fmt.Sprintf("%v, want an answer by %v", err, r.names())
		}
		got[a.Server]++
	}
	for name, share := range r.answers {
		p := float64(share) / float64(total)
		if off := float64(got[name]) - p*float64(n); math.Abs(off) > deviations*math.Sqrt(p*(1-p)*float64(n)) {
			return fmt.Sprintf("of %d connections %v are answered by each, want shares as %v", n, got, r.answers)
		}
	}
	return ""
}

// source describes a wrong source address that a server saw, or returns "".
func (w *world) source(r row, a lab.Answer) string {
	node := r.seesNode(a.Server) || r.client == "local"
	if _, literal := netip.ParseAddrPort(r.to); literal != nil && !w.caps.KeepsSource {
		node = true
	}
	client := addressOf(r.client, a.Client.Addr())
	if got := nameOf(a.Client.Addr()) == "node"; got != node || !node && a.Client.Addr() != client {
		return fmt.Sprintf("%s sees %s; an address of the node's: want %v", a.Server, a.Client.Addr(), node)
	}
	return ""
}

// ask opens a connection, or sends a datagram from a new port, and returns the server's answer.
func (w *world) ask(r row, network string, within time.Duration) (lab.Answer, error) {
	to, err := r.destination()
	if err != nil {
		return lab.Answer{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var c net.Conn
	for {
		from := netip.AddrPort{}
		if r.client != "local" {
			from = netip.AddrPortFrom(addressOf(r.client, to.Addr()), 0)
		} else if network == "udp" {
			from = netip.AddrPortFrom(unspecified(to.Addr()), 0)
		}
		if network == "udp" {
			from = netip.AddrPortFrom(from.Addr(), uint16(20000+w.port.Add(1)%40000))
		}
		if c, err = w.hosts[r.client].DialFrom(ctx, network, from, to.String()); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return lab.Answer{}, err
	}
	defer func() { _ = c.Close() }()
	a, err := lab.AskWithin(c, within)
	if network == "udp" && errors.Is(err, unix.EPERM) { // the first error is from a filter on the client's host; read the result that follows
		_, err = c.Read(make([]byte, 1))
	}
	return a, err
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
