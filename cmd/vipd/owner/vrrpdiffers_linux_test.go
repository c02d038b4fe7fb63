package owner

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

// longestTwice returns for how long at most two hosts answered each request, considering requests
// since at.
func (p *arpProbe) longestTwice(at time.Time) (longest time.Duration) {
	var since time.Time
	for _, r := range p.since(at) {
		switch {
		case len(r.hosts) < 2:
			since = time.Time{}
		case since.IsZero():
			since = r.at
		}
		if !since.IsZero() {
			longest = max(longest, r.at.Sub(since)+arpEvery)
		}
	}
	return longest
}

// lowTTL makes a host send adverts with a TTL of 64.
func lowTTL(r *vrrpRouter) {
	r.ns.Exec("nft", "add table ip m; add chain ip m out { type filter hook output priority mangle; }; add rule ip m out meta l4proto 112 ip ttl set 64")
}

// TestVRRPDiffers starts a host whose group differs from the owner's group. This host must report a
// problem that names the difference. If only this host can end the double ownership, it must do so
// within five intervals.
func TestVRRPDiffers(t *testing.T) {
	const fast = 200 * time.Millisecond
	const version2 = "version = 2\npassword = \"secret\""
	other := netip.MustParseAddr("10.9.0.101")
	for _, c := range []struct {
		name    string
		pair    vrrpPair
		change  func(text string) string
		before  func(*vrrpRouter)
		problem string
		// both reports whether the hosts own different VIPs.
		both bool
	}{
		{
			name: "list", pair: vrrpPair{interval: fast, reported: []netip.Addr{vip, other}}, problem: "it does not list 10.9.0.101",
			change: func(text string) string { return text },
		},
		{
			name: "version", pair: vrrpPair{interval: time.Second}, problem: "its advert has version 3, but main has 2",
			change: func(text string) string { return strings.Replace(text, "router_id", "version = 2\nrouter_id", 1) },
		},
		{
			name: "password", pair: vrrpPair{interval: time.Second, group: version2}, problem: "its advert has a different password, or none",
			change: func(text string) string { return strings.Replace(text, "secret", "other", 1) },
		},
		{
			name: "interval of version 2", pair: vrrpPair{interval: time.Second, group: version2}, problem: "its advert has the interval 1s, but main has 2s",
			change: func(text string) string { return strings.Replace(text, `"1s"`, `"2s"`, 1) },
		},
		{
			name: "interval", pair: vrrpPair{interval: fast}, problem: "its interval is 200ms, not 300ms",
			change: func(text string) string { return strings.Replace(text, `"200ms"`, `"300ms"`, 1) },
		},
		{
			name: "TTL", pair: vrrpPair{interval: fast}, problem: "its advert has TTL 64, less than 255",
			change: func(text string) string { return text }, before: lowTTL,
		},
		{
			name: "a stranger", pair: vrrpPair{interval: fast, reported: []netip.Addr{other}}, problem: "lists no VIP of main: another router uses router_id 51, so choose a different router_id",
			change: func(text string) string { return text }, both: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := c.pair
			o.preempt, o.first, o.second, o.late = "never", 150, 100, true
			p := newPair(t, o)
			if c.before != nil {
				c.before(p.a)
				c.before(p.b)
			}
			p.b.configure(c.change(p.b.text))
			began := time.Now()
			p.b.begin()
			wait.For(t, wait.Patience, "the problem "+c.problem, func() bool { return p.b.problem(c.problem) })
			if c.both {
				return
			}
			time.Sleep(6 * o.interval) // in this time, the newcomer may own the VIP, but must yield
			p.owns(t, p.a)
			both := p.probe.longestTwice(began)
			t.Logf("both answered for %s", both.Round(time.Millisecond))
			if bound := 5 * o.interval; both > wait.Bound(bound) {
				t.Errorf("both hosts answered for %s, want at most %s", both, bound)
			}
			if !p.b.problem(c.problem) {
				t.Errorf("problems = %q, want %q", p.b.answer().Problems, c.problem)
			}
		})
	}
}

// TestVRRPSameRouterID gives a host two groups with the same router ID on the same interface, but
// only one of the groups names the interface. The second group must not be on the host, and a
// problem must state the reason.
func TestVRRPSameRouterID(t *testing.T) {
	const group = `
[ownership.vrrp.other]
router_id = 51
interface = "lan"`
	const services = `group = "main"
[vips."10.9.0.101"]
hold = "one"
group = "other"
`
	p := newPair(t, vrrpPair{interval: 200 * time.Millisecond, preempt: "0s", first: 150, second: 100, group: group, services: services, late: true})
	p.a.serve()
	p.owns(t, p.a)
	wait.For(t, wait.Patience, "the problem", func() bool {
		return p.a.problem("other is not on this host: router_id 51 is the ID of main on interface lan: choose another ID")
	})
}

// TestVRRPNextToKeepalived runs a keepalived with the same router ID on the same host. A group that
// owns the VIP must stay, and a problem must be reported. After a restart, the group must not be on
// the host until keepalived exits. A keepalived in another namespace must not count.
func TestVRRPNextToKeepalived(t *testing.T) {
	const interval = 200 * time.Millisecond
	p := newPair(t, vrrpPair{interval: interval, preempt: "0s", first: 150, second: 100, keepalived: true})
	p.owns(t, p.a)
	const problem = "keepalived also has router_id 51 on interface lan of this host"
	if p.a.problem(problem) {
		t.Errorf("problems = %q, want no problem about gw2's keepalived", p.a.answer().Problems)
	}
	p.b.signal(syscall.SIGTERM)
	<-p.b.ended.Done()
	p.b.ns = p.a.ns
	p.b.begin()
	wait.For(t, wait.Patience, "the problem", func() bool { return p.a.problem("main: " + problem) })
	p.owns(t, p.a)
	p.a.signal(syscall.SIGTERM)
	p.a.begin()
	wait.For(t, wait.Patience, "the refusal", func() bool { return p.a.problem("main is not on this host: " + problem) })
	p.b.signal(syscall.SIGTERM)
	p.owns(t, p.a)
}

// TestVRRPChecksum configures a checksum for vipd owner that keepalived drops. vipd owner preempts
// keepalived, but must yield, and must name the checksum.
func TestVRRPChecksum(t *testing.T) {
	const interval = 200 * time.Millisecond
	p := newPair(t, vrrpPair{interval: interval, preempt: "0s", group: `checksum = "plain"`, first: 150, second: 100, keepalived: true, late: true})
	p.a.signal(syscall.SIGTERM)
	p.b.begin()
	p.owns(t, p.b)
	began := time.Now()
	p.a.begin()
	wait.For(t, wait.Patience, "the problem", func() bool { return p.a.problem("its checksum is pseudo, not plain") })
	time.Sleep(8 * interval) // in this time, gw1 owns the VIP, but must yield
	p.owns(t, p.b)
	both := p.probe.longestTwice(began)
	t.Logf("both answered for %s", both.Round(time.Millisecond))
	if bound := 5 * interval; both > wait.Bound(bound) {
		t.Errorf("both hosts answered for %s, want at most %s", both, bound)
	}
}

// TestVRRPNewcomer starts a keepalived with other addresses while a host has owned the VIP for a
// long time. keepalived drops the owner's adverts, so only the owner can end the double ownership.
// The owner must do so within five intervals, name the difference, and own the VIP again after
// keepalived has stopped.
func TestVRRPNewcomer(t *testing.T) {
	const interval = 200 * time.Millisecond
	p := newPair(t, vrrpPair{interval: interval, preempt: "0s", first: 150, second: 100, keepalived: true, late: true, listed: "10.9.0.101/32 dev lan\n"})
	p.owns(t, p.a)
	began := time.Now()
	p.b.begin()
	p.owns(t, p.b)
	both := p.probe.longestTwice(began)
	t.Logf("both answered for %s", both.Round(time.Millisecond))
	if bound := 5 * interval; both > wait.Bound(bound) {
		t.Errorf("both hosts answered for %s, want at most %s", both, bound)
	}
	if !p.a.problem("it also lists 10.9.0.101") {
		t.Errorf("problems = %q, want a problem that names the difference", p.a.answer().Problems)
	}
	p.b.signal(syscall.SIGTERM)
	p.owns(t, p.a)
}

// TestVRRPPartition cuts the owner off and connects it again. Without a witness (a host that must
// be within reach), both hosts own the VIP, and must report an event within a second after they are
// connected again. With a witness, the owner must stop answering within 2 s, and the other host
// must keep the VIP.
func TestVRRPPartition(t *testing.T) {
	const interval = 200 * time.Millisecond
	for _, witness := range []bool{false, true} {
		t.Run(fmt.Sprintf("witness: %t", witness), func(t *testing.T) {
			o := vrrpPair{interval: interval, preempt: "never", first: 150, second: 100}
			if witness {
				o.gateway = netip.MustParseAddr("10.9.0.50")
			}
			p := newPair(t, o)
			p.owns(t, p.a)
			wait.For(t, wait.Patience, "gw2 to follow the owner", p.b.follows)
			time.Sleep(time.Second) // the witness answers in this time
			began := time.Now()
			p.lan.Plug(p.a.ns, false)
			p.owns(t, p.b)
			if witness {
				wait.For(t, wait.Patience, "gw1 to be silent", func() bool { return len(p.a.bound()) == 0 })
				silent := time.Since(began)
				t.Logf("gw1 was silent after %s", silent.Round(time.Millisecond))
				if bound := 2300 * time.Millisecond; silent > wait.Bound(bound) {
					t.Errorf("gw1 stopped answering after %s, want at most %s", silent, bound)
				}
			} else if len(p.a.bound()) != 1 {
				t.Error("VIPs that gw1 owns on its side of the partition != 1, want 1")
			}
			healed := time.Now()
			p.lan.Plug(p.a.ns, true)
			if witness {
				wait.For(t, wait.Patience, "gw1 to follow gw2", p.a.follows)
				time.Sleep(4 * interval) // gw1 might take over in this time
				p.owns(t, p.b)
				if n := p.probe.twice(healed); n > 0 {
					t.Errorf("requests that both hosts answered = %d, want 0", n)
				}
				return
			}
			wait.For(t, wait.Patience, "an event", func() bool { return p.a.meeting(healed) > 0 || p.b.meeting(healed) > 0 })
			after := max(p.a.meeting(healed), p.b.meeting(healed))
			t.Logf("event after %s", after.Round(time.Millisecond))
			if after > wait.Bound(time.Second) {
				t.Errorf("event arrived %s after the hosts were connected again, want an event within a second", after)
			}
			p.owns(t, p.a)
			wait.For(t, wait.Patience, "the rival to be over", func() bool {
				return !p.a.problem("answers for 10.9.0.100") && !p.b.problem("answers for 10.9.0.100")
			})
		})
	}
}

// meeting returns how long after the time after the host first reported another owner, or 0 if it
// did not.
func (r *vrrpRouter) meeting(after time.Time) time.Duration {
	if s := r.status(); s != nil {
		for _, e := range s.Events {
			if e.Time.After(after) && (strings.Contains(e.Text, "at the same time as this host") || strings.Contains(e.Text, "gave main")) {
				return e.Time.Sub(after)
			}
		}
	}
	return 0
}

// TestVRRPLostAdverts drops the last adverts before the owner stops. If one advert is lost, the
// hosts must never both answer. If two adverts are lost, both hosts may answer for at most the
// gate's timeout.
func TestVRRPLostAdverts(t *testing.T) {
	const interval, gate = 200 * time.Millisecond, 100 * time.Millisecond
	p := newPair(t, vrrpPair{interval: interval, preempt: "never", first: 150, second: 100})
	owner, other := p.a, p.b
	for range wait.Soak(2, 20) {
		for lost, limit := range map[time.Duration]time.Duration{1: 0, 2: gate} {
			p.owns(t, owner)
			wait.For(t, wait.Patience, other.ns.Name+" to follow the owner", other.follows)
			began := time.Now()
			other.ns.Exec("nft", "add table netdev lose; add chain netdev lose in { type filter hook ingress device lan priority 0; }; add rule netdev lose in ip protocol 112 drop")
			time.Sleep(time.Until(began.Add(lost * interval))) // wait until the owner has sent this many adverts
			owner.signal(syscall.SIGSTOP)
			other.ns.Exec("nft", "delete table netdev lose")
			wait.For(t, wait.Patience, other.ns.Name+" to own the VIP", func() bool { return p.probe.only(other.mac) })
			owner.signal(syscall.SIGCONT)
			time.Sleep(2 * interval) // a second owner would answer within this time
			both := p.probe.longestTwice(began)
			t.Logf("%d lost: both answered for %s", lost, both.Round(time.Millisecond))
			if both > wait.Bound(limit) {
				t.Errorf("%d adverts lost: both hosts answered for %s, want at most %s", lost, both, limit)
			}
			owner, other = other, owner
		}
	}
}

// TestVRRPStress keeps twice as many processes busy as there are CPUs. The owner must not change.
func TestVRRPStress(t *testing.T) {
	if !wait.Soaking() {
		t.Skip("needs all processors for ten minutes, which make soak has")
	}
	lab.Need(t, "stress-ng")
	p := newPair(t, vrrpPair{interval: 200 * time.Millisecond, preempt: "0s", first: 150, second: 100})
	p.owns(t, p.a)
	wait.For(t, wait.Patience, "gw2 to follow the owner", p.b.follows)
	ctx, cancel := context.WithTimeout(t.Context(), stressed)
	defer cancel()
	began := time.Now()
	_ = exec.CommandContext(ctx, "stress-ng", "--cpu", fmt.Sprint(2*runtime.NumCPU()), "--timeout", fmt.Sprint(int(stressed.Seconds()))).Run() // stress-ng exits when ctx is done
	if ran := time.Since(began); ran < stressed/2 {
		t.Fatalf("stress-ng ran for %s, want at least half of the test", ran)
	}
	for _, r := range []*vrrpRouter{p.a, p.b} {
		for _, e := range r.answer().Events {
			if e.Time.After(began) && (strings.Contains(e.Text, "took main") || strings.Contains(e.Text, "gave main") || strings.Contains(e.Text, "lost main") || strings.Contains(e.Text, "gate closed")) {
				t.Errorf("%s after %s: %s", r.ns.Name, e.Time.Sub(began).Round(time.Millisecond), e.Text)
			}
		}
		t.Logf("%s was late by at most %.3fs", r.ns.Name, r.answer().Late)
	}
}

// stressed is how long TestVRRPStress runs.
const stressed = 10 * time.Minute
