package owner

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// pair consists of two VRRP routers and a client on a LAN.
type pair struct {
	lab *lab.Lab
	lan *lab.Bridge
	// sync is the network for adverts, if they have their own network.
	sync   *lab.Bridge
	client *lab.NS
	a, b   *vrrpRouter
	probe  *arpProbe
	bin    string // the directory that contains the programs
}

// vrrpRouter is a host that runs vipd owner or keepalived.
type vrrpRouter struct {
	gateway
	mac      string
	priority int
	// keepalived is keepalived's configuration. If it is empty, the router runs vipd owner.
	keepalived string
	// text is vipd's configuration.
	text string
}

// vrrpPair describes the settings of a pair.
type vrrpPair struct {
	interval time.Duration
	// preempt is a setting of both hosts. keepalived reports whether the second host runs
	// keepalived instead of vipd owner.
	preempt    string
	keepalived bool
	// group holds more lines for the group, and instance more lines for keepalived's instance. OWN
	// and PEER are replaced by the hosts' addresses.
	group, instance string
	// listed is inserted before vip in keepalived's list of VIPs.
	listed string
	// dual reports whether the group also has vip6. Its adverts then use IPv6.
	dual bool
	// first and second are the hosts' priorities.
	first, second int
	// services defines services on both hosts; vipd then reports the VIP. If it is empty, the test
	// reports the VIP instead of vipd.
	services string
	// sync reports whether adverts have their own network. gateway is the default gateway, or the
	// zero Addr.
	sync    bool
	gateway netip.Addr
	// late reports whether the test starts the second host itself. vips lists VIPs that are
	// reported instead of vip.
	late     bool
	reported []netip.Addr
}

// newPair starts two routers that share the address vip.
func newPair(t *testing.T, o vrrpPair) *pair {
	t.Helper()
	if o.keepalived {
		lab.Need(t, "keepalived")
	}
	l := lab.New(t)
	p := &pair{lab: l, lan: l.Bridge("lan"), bin: program.Bin(t)}
	if o.sync {
		p.sync = l.Bridge("sync")
	}
	p.client = l.Add("client")
	p.lan.Join(p.client, "10.9.0.50/16")
	p.a = p.router(t, l.Add("gw1"), 11, o.first, o, false)
	p.b = p.router(t, l.Add("gw2"), 12, o.second, o, o.keepalived)
	p.probe = newARPProbe(t, p.client, vip)
	p.a.begin()
	if o.preempt == "never" && o.services == "" { // otherwise, the host that starts first would own the VIP permanently
		p.owns(t, p.a)
	}
	if !o.late {
		p.b.begin()
	}
	return p
}

func (p *pair) router(t *testing.T, ns *lab.NS, number, priority int, o vrrpPair, keepalived bool) *vrrpRouter {
	t.Helper()
	p.lan.Join(ns, fmt.Sprintf("10.9.0.%d/16", number), fmt.Sprintf("fd09::%d/64", number))
	addresses := strings.NewReplacer("OWN", fmt.Sprintf("10.9.0.%d", number), "PEER", fmt.Sprintf("10.9.0.%d", 23-number))
	vips, listed := []netip.Addr{vip}, "virtual_ipaddress {\n"+o.listed+"10.9.0.100/32 dev lan\n}"
	if o.dual {
		vips = append(vips, vip6)
		o.group += "advertise = [\"fd09::100\"]\n[vips.\"fd09::100\"]\nhold = \"one\""
		listed = "virtual_ipaddress {\nfd09::100/128 dev lan\n}\nvirtual_ipaddress_excluded {\n10.9.0.100/32 dev lan\n}"
	}
	if o.sync {
		p.sync.Join(ns, fmt.Sprintf("10.8.0.%d/24", number))
		o.group += "interface = \"sync\"\n"
	}
	if o.gateway.IsValid() {
		ns.Default(o.gateway.String())
	}
	r := &vrrpRouter{gateway: gateway{t: t, ns: ns, bin: p.bin, dir: t.TempDir()}, priority: priority}
	r.http = ownerClient(r.dir)
	r.mac = strings.Fields(ns.Exec("ip", "-br", "link", "show", "dev", "lan"))[2]
	text := fmt.Sprintf(vrrpConfiguration, ns.Name, priority, o.interval, o.preempt, addresses.Replace(o.group))
	if keepalived {
		r.keepalived = filepath.Join(r.dir, "keepalived.conf")
		text = fmt.Sprintf(keepalivedConfiguration, priority, o.interval.Seconds(), addresses.Replace(o.instance), listed)
		if err := os.WriteFile(r.keepalived, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r.configure(text + o.services)
	t.Cleanup(func() {
		if text, err := os.ReadFile(filepath.Join(r.dir, "log")); t.Failed() && err == nil {
			t.Logf("%s says:\n%s", ns.Name, text)
		}
	})
	if number == 12 && len(o.reported) > 0 {
		vips = o.reported
	}
	if o.services == "" {
		r.reports(vips)
	}
	return r
}

func (r *vrrpRouter) configure(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.config(), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.text = text
}

const vrrpConfiguration = `
node = "%[1]s"
state_dir = "state"
run_dir = "run"
api.socket = "run/vipd.sock"
api.http = ""
[ownership]
enabled = true
by = "vrrp"
[ownership.vrrp.main]
router_id = 51
priority = %[2]d
advert_interval = "%[3]s"
preempt = "%[4]s"
%[5]s
[vips."10.9.0.100"]
hold = "one"
`

const keepalivedConfiguration = `
global_defs {
	vrrp_version 3
	vrrp_garp_master_delay 0
}
vrrp_instance main {
	state BACKUP
	interface lan
	virtual_router_id 51
	priority %[1]d
	advert_int %[2]g
	%[3]s
	%[4]s
}
`

// begin starts the router's program. It first waits until the previous program has exited.
func (r *vrrpRouter) begin() {
	r.t.Helper()
	if r.keepalived == "" {
		r.start()
		return
	}
	if r.cmd != nil {
		<-r.ended.Done()
	}
	file := func(name string) string { return filepath.Join(r.dir, name) }
	cmd := r.ns.Command(r.t.Context(), "keepalived", "-n", "-l", "-P", "-f", r.keepalived, "-p", file("pid"), "-r", file("vrrp.pid"))
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = cmd.Wait(); cancel() }()
	r.cmd, r.ended = cmd, ctx
	r.t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGCONT); _ = cmd.Process.Kill(); <-ctx.Done() })
}

// reports sends VIP reports to vipd owner as vipd would.
func (r *vrrpRouter) reports(vips []netip.Addr) {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan bool)
	report := api.OwnerReport{VIPs: map[netip.Addr]api.OwnedVIP{}, Grace: time.Hour}
	for _, a := range vips {
		report.VIPs[a] = api.OwnedVIP{Serves: true}
	}
	c := api.NewOwnerClient(filepath.Join(r.dir, "run", api.OwnerSocket))
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_, _ = c.Report(ctx, report)
			select { // vipd sends a report at this interval
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	r.t.Cleanup(func() { cancel(); <-ended; c.Close() })
}

// down returns how long after the other router's last advert this router takes over.
func (r *vrrpRouter) down(interval time.Duration) time.Duration {
	return 3*interval + time.Duration(256-r.priority)*interval/256
}

// follows reports whether a router that runs vipd owner is a backup and receives the owner's
// adverts.
func (r *vrrpRouter) follows() bool {
	s := r.status()
	return s != nil && s.VRRP != nil && len(s.VRRP.Groups) == 1 && s.VRRP.Groups[0].State == vrrp.Backup && s.VRRP.Groups[0].Owner.IsValid()
}

// owns waits until only the router r answers for the VIP.
func (p *pair) owns(t *testing.T, r *vrrpRouter) {
	t.Helper()
	wait.For(t, wait.Patience, r.ns.Name+" to own the VIP", func() bool { return p.probe.only(r.mac) })
}

type vrrpFault struct {
	name          string
	fault, repair func(*vrrpRouter)
	// planned reports whether the router passes the VIP to the other router before it stops.
	planned bool
}

func (r *vrrpRouter) signal(s os.Signal) { _ = r.cmd.Process.Signal(s) }

// vrrpFaults lists ways in which vipd owner exits or stops.
var vrrpFaults = []vrrpFault{
	{"kill -9", func(r *vrrpRouter) { r.signal(syscall.SIGKILL) }, (*vrrpRouter).begin, false},
	{"SIGSTOP", func(r *vrrpRouter) { r.signal(syscall.SIGSTOP) }, func(r *vrrpRouter) { r.signal(syscall.SIGCONT) }, false},
	{"SIGTERM", func(r *vrrpRouter) { r.signal(syscall.SIGTERM) }, (*vrrpRouter).begin, true},
}

// plannedLate limits how late a host may answer for a VIP that another host passes to it, after the
// skew time for the host's priority. The limit is higher in make test, because other tests run at
// the same time.
func plannedLate() time.Duration {
	if wait.Soaking() {
		return 30 * time.Millisecond
	}
	return 130 * time.Millisecond
}

// meet injects a fault into the owner, waits until the other router owns the VIP, and removes the
// fault. The two routers must never answer the same request.
func (p *pair) meet(t *testing.T, f vrrpFault, owner, other *vrrpRouter, interval time.Duration) {
	t.Helper()
	p.owns(t, owner)
	if other.keepalived == "" {
		wait.For(t, wait.Patience, other.ns.Name+" to follow the owner", other.follows)
	}
	began := time.Now()
	f.fault(owner)
	wait.For(t, wait.Patience, other.ns.Name+" to own the VIP after "+f.name, func() bool { return p.probe.only(other.mac) })
	took := p.probe.first(other.mac, began)
	f.repair(owner)
	t.Logf("%s at %s: taken over after %s", f.name, interval, took.Round(time.Millisecond))
	bound := other.down(interval) + 100*time.Millisecond
	if f.planned {
		bound = other.down(interval) - 3*interval + plannedLate()
	}
	if took > wait.Bound(bound) {
		t.Errorf("%s: takeover took %s, want at most %s", f.name, took, bound)
	}
	time.Sleep(2 * interval) // a second owner would answer within this time
	if n := p.probe.twice(began); n > 0 {
		t.Errorf("%s: requests that both hosts answered = %d, want 0", f.name, n)
	}
}

// TestVRRPPair injects one fault after another into the owner of a pair. The other host must take
// over in time, and the two hosts must never answer the same request.
func TestVRRPPair(t *testing.T) {
	for _, interval := range []time.Duration{200 * time.Millisecond, 100 * time.Millisecond, time.Second}[:wait.Soak(1, 3)] {
		t.Run(interval.String(), func(t *testing.T) {
			p := newPair(t, vrrpPair{interval: interval, preempt: "never", first: 150, second: 100})
			owner, other := p.a, p.b
			for range wait.Soak(1, 20) {
				for _, f := range vrrpFaults {
					p.meet(t, f, owner, other, interval)
					owner, other = other, owner
				}
				owner, other = p.brief(t, owner, other, interval)
			}
		})
	}
}

// brief stops the owner several times, each time for almost as long as the other host waits before
// it takes over. It returns which host owns the VIP afterwards, and the other host.
func (p *pair) brief(t *testing.T, owner, other *vrrpRouter, interval time.Duration) (newOwner, newOther *vrrpRouter) {
	t.Helper()
	for _, quarters := range []time.Duration{1, 6, 12, 14, 16} {
		stop := quarters * interval / 4
		began := time.Now()
		owner.signal(syscall.SIGSTOP)
		time.Sleep(stop) // how long the owner is stopped
		owner.signal(syscall.SIGCONT)
		time.Sleep(5 * interval) // a second owner would answer within this time
		if n := p.probe.twice(began); n > 0 {
			t.Errorf("stopped for %s: requests that both hosts answered = %d, want 0", stop, n)
		}
		wait.For(t, wait.Patience, "one owner", func() bool { return p.probe.only(owner.mac) || p.probe.only(other.mac) })
		if p.probe.only(other.mac) {
			owner, other = other, owner
		}
	}
	return owner, other
}

// TestVRRPWithoutGate kills an owner and removes its gate. Both hosts must answer, which proves
// that the probe detects two owners.
func TestVRRPWithoutGate(t *testing.T) {
	const interval = 100 * time.Millisecond
	p := newPair(t, vrrpPair{interval: interval, preempt: "never", first: 150, second: 100})
	p.owns(t, p.a)
	began := time.Now()
	p.a.signal(syscall.SIGKILL)
	<-p.a.ended.Done()
	p.a.ns.Exec("nft", "delete table netdev vipd-owner")
	wait.For(t, wait.Patience, "both hosts to answer", func() bool { return p.probe.twice(began) > 10 })
}

// TestVRRPKeepalived injects faults into vipd owner while keepalived is the other router.
// keepalived must take over in time, and the two hosts must never answer the same request. Then
// keepalived must return the VIP.
func TestVRRPKeepalived(t *testing.T) {
	for _, interval := range []time.Duration{200 * time.Millisecond, 100 * time.Millisecond, time.Second}[:wait.Soak(1, 3)] {
		t.Run(interval.String(), func(t *testing.T) {
			p := newPair(t, vrrpPair{interval: interval, preempt: "0s", first: 150, second: 100, keepalived: true})
			for range wait.Soak(1, 20) {
				for _, f := range vrrpFaults {
					p.meet(t, f, p.a, p.b, interval)
					p.owns(t, p.a)
				}
			}
		})
	}
}

// TestVRRPServes runs both vipd and vipd owner on both hosts, without etcd. A host whose service
// has no endpoint must pass the VIP to the other host. Once the service has an endpoint, the host
// must own the VIP again.
func TestVRRPServes(t *testing.T) {
	const services = `
[services.probe]
vips = ["10.9.0.100"]
ports = [{ port = 9000, target_port = 9001, protocol = "udp" }]
endpoints = [{ address = "10.9.0.50" }]
`
	p := newPair(t, vrrpPair{interval: 200 * time.Millisecond, preempt: "0s", first: 150, second: 100, services: services})
	respond(t, p.client)
	for _, r := range []*vrrpRouter{p.a, p.b} {
		r.serve()
	}
	served := func(r *vrrpRouter) {
		t.Helper()
		p.owns(t, r)
		wait.For(t, wait.Patience, "an answer by "+r.ns.Name, func() bool {
			return ask(t, p.client, netip.AddrPortFrom(vip, probePort)) == p.client.Name
		})
	}
	served(p.a)
	wait.For(t, wait.Patience, "the status of a Backup", func() bool {
		return strings.Contains(p.b.vipctl("status"), "main is Backup of 10.9.0.11 (priority 150")
	})

	whole := p.a.text
	p.a.configure(strings.Replace(whole, `endpoints = [{ address = "10.9.0.50" }]`, "endpoints = []", 1))
	served(p.b)
	p.a.event("resigned main (10.9.0.100): service probe has no usable endpoint")
	p.a.configure(whole)
	served(p.a)
}

// maxLate is how many requests keepalived may answer after vipd owner has taken over its VIP. vipd
// owner waits for 20 ms, and keepalived has no real-time priority.
const maxLate = 40

// TestVRRPInterworks moves the VIP between vipd owner and keepalived, with each kind of advert that
// both programs support. The router with the higher priority must own the VIP again afterwards,
// unless preemption is disabled.
func TestVRRPInterworks(t *testing.T) {
	const fast = 200 * time.Millisecond
	for _, c := range []struct {
		name string
		pair vrrpPair
		back bool // the router with the higher priority must own the VIP again
	}{
		{"unicast", vrrpPair{interval: fast, preempt: "0s", group: `peers = ["PEER"]`, instance: "unicast_src_ip OWN\nunicast_peer {\nPEER\n}"}, true},
		{"IPv6", vrrpPair{interval: fast, preempt: "0s", dual: true}, true},
		{"version 2 with a password", vrrpPair{
			interval: time.Second, preempt: "0s", group: "version = 2\npassword = \"secret\"",
			instance: "version 2\nauthentication {\nauth_type PASS\nauth_pass secret\n}",
		}, true},
		{"no preemption", vrrpPair{interval: fast, preempt: "never", instance: "nopreempt"}, false},
	} {
		for _, higher := range []string{"vipd", "keepalived"} {
			t.Run(c.name+", "+higher+" is higher", func(t *testing.T) {
				c.pair.keepalived, c.pair.first, c.pair.second = true, 150, 100
				if higher == "keepalived" {
					c.pair.first, c.pair.second = 100, 150
				}
				p := newPair(t, c.pair)
				first, second := p.a, p.b
				if higher == "keepalived" {
					first, second = second, first
				}
				if !c.back { // the router that started first may own the VIP
					second.signal(syscall.SIGTERM)
					p.owns(t, first)
					second.begin()
				}
				p.owns(t, first)
				began := time.Now()
				first.signal(syscall.SIGTERM)
				p.owns(t, second)
				t.Logf("given away after %s", p.probe.first(second.mac, began).Round(time.Millisecond))
				if n := p.probe.twice(began); n > 0 {
					t.Errorf("requests that both hosts answered = %d, want 0", n)
				}
				began = time.Now()
				first.begin()
				if c.back {
					p.owns(t, first)
				} else {
					time.Sleep(5 * c.pair.interval) // the router would preempt within this time
					p.owns(t, second)
				}
				if n := p.probe.twice(began); n > maxLate {
					t.Errorf("requests that both hosts answered = %d of %d, want at most maxLate", n, len(p.probe.since(began)))
				}
			})
		}
	}
}
