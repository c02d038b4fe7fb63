package dataplanetest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// mendTime is within what everything is as it was, with the engine's usual ProbeInterval, on slow machines too. Usually
// it is usuallyMended.
const mendTime, usuallyMended = 3 * time.Second, 1500 * time.Millisecond

// testDamage has each kind of damage noticed and mended, while connections are open, which outlive it as long as nothing
// is sent on them meanwhile, and clients keep coming.
func testDamage(t *testing.T, s *Subject) {
	if len(s.Damage)+len(s.Scratches) == 0 {
		t.Skip("the subject names no damage")
	}
	s.stage = newStage(t, s)
	for _, name := range slices.Sorted(maps.Keys(s.Damage)) {
		s.sub(t, name, func(t *testing.T) {
			r := newDamageable(t, s)
			conns := r.established()
			r.mends(s.Damage[name])
			r.mended(name, conns)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Scratches)) {
		s.sub(t, name, func(t *testing.T) {
			r := newDamageable(t, s)
			conns, others := r.established(), r.pulses(bystander())
			r.mends(s.Scratches[name])
			r.mended(name, conns)
			r.undisturbed(others, "damage to another service, and its mending")
		})
	}
	s.sub(t, "others-first", func(t *testing.T) {
		r := newDamageable(t, s)
		if len(s.ourChains(t, "")) == 0 {
			t.Skip("it has no chains in iptables")
		}
		r.othersFirst()
	})
}

// mends has damage be mended, in time: that includes a look each second and a full comparison, which a busy machine is
// given as many times longer for as it takes for another, and one that says it is slow (wait.SlownessVar) still longer: it
// may stand still between the two. What breaks after such a comparison has begun is for the next look.
func (r *rig) mends(damage func(t testing.TB)) {
	r.Helper()
	compared := r.compares()
	within := max(mendTime, time.Second+5*compared)
	repairs := r.engine.Status().Repairs
	damage(r.T)
	began := time.Now()
	r.repaired(repairs, within)
	if s := r.engine.Status(); s.Last.Add(-s.LastDuration).Before(began) { // some of it came after that had looked
		within += time.Second
		r.serves(within - time.Since(began))
	}
	took := time.Since(began)
	if most := wait.Scaled(within); took > most {
		r.Errorf("mended after %v, want it within %v", took, most)
	}
	r.Logf("mended after %v, where a full comparison takes %v", took.Round(time.Millisecond), compared.Round(time.Millisecond))
}

// serves waits until clients at the service's VIPs are answered, and those of the one without endpoints are refused.
func (r *rig) serves(within time.Duration) {
	r.Helper()
	lab.Eventually(r, within, "service after the rest of the damage was mended", func() error {
		for i, vip := range r.w.vip {
			for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
				for _, from := range []*lab.NS{r.w.client, r.w.host} {
					if _, err := r.askFrom(from, netip.Addr{}, keyOf(vip, vipPort, proto), silence); err != nil {
						return err
					}
					if err := r.refusal(from, keyOf(vipN(40)[i], vipPort, proto), silence); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// compares has the engine compare everything with what is there, and returns how long that takes.
func (r *rig) compares() time.Duration {
	r.Helper()
	before, began := r.engine.Status().Last, time.Now()
	r.engine.Resync()
	lab.Eventually(r, settleTime, "a full comparison", func() error {
		if s := r.engine.Status(); s.Last.Equal(before) || !s.LastFull {
			return errors.New("it has not come to an end")
		}
		return nil
	})
	return time.Since(began)
}

// bystander is the VIP of a service that Scratches do not touch.
func bystander() addrs { return vipN(31) }

// newDamageable is a rig with services that use all of a Host's parts, and the engine's usual ProbeInterval. Each damage
// has one of its own: engines and dataplanes may look more rarely where somebody changes rules all the time.
func newDamageable(t *testing.T, s *Subject) *rig {
	t.Helper()
	r := onStage(t, s)
	r.driveEvery(time.Second)
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.SourceRanges = prefixes("10.0.0.0/8", "fd00::/8")
	r.apply(web, newService("empty", vipN(40)), newService("bystander", bystander(), endpoints(r.w.servers...)...))
	return r
}

// established are connections and flows that are open.
func (r *rig) established() map[balancer.Key]net.Conn {
	r.Helper()
	conns := map[balancer.Key]net.Conn{}
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		for _, vip := range r.w.vip {
			k := keyOf(vip, vipPort, proto)
			conns[k], _ = r.mustOpen(r.w.client, netip.Addr{}, k)
		}
	}
	return conns
}

// repaired waits until more than so many repairs are done.
func (r *rig) repaired(before int, within time.Duration) {
	r.Helper()
	lab.Eventually(r, within, "mending", func() error {
		if s := r.engine.Status(); s.Repairs <= before || s.LastError != "" {
			return fmt.Errorf("%d repairs, before %d; last sync at %s, error %q; VIPs held: %d", s.Repairs, before,
				s.Last.Format(time.StampMilli), s.LastError, len(heldVIPs(r)))
		}
		return nil
	})
}

// mended is wholeAgain after some damage, without the connections that it has ended.
func (r *rig) mended(damage string, conns map[balancer.Key]net.Conn) {
	r.Helper()
	if why, ends := r.s.Ends[damage]; ends {
		r.Log("connections need not live: ", why)
		for _, c := range conns {
			_ = c.Close()
		}
		conns = r.established()
	}
	r.wholeAgain(conns)
}

// wholeAgain checks that established connections live, and that clients meet what they should.
func (r *rig) wholeAgain(conns map[balancer.Key]net.Conn) {
	r.Helper()
	for key, c := range conns {
		if err := alive(c, atOnce); err != nil {
			r.Errorf("%s: a connection from before: %v", key, err)
		}
		r.mustAsk(r.w.client, key)
		r.mustAsk(r.w.host, key)
		r.refused(r.w.client, keyOf(vipN(40).of(key.Addr), vipPort, key.Proto))
	}
}

// othersFirst has somebody put a rule of theirs before each of ours in the kernel's chains: it stays there, and the
// service works on.
func (r *rig) othersFirst() {
	conns := r.established()
	jumps := r.s.ourJumps(r.T)
	for _, j := range jumps {
		rule := []string{"-i", "other0", "-j", "RETURN"}
		if j.chain == "OUTPUT" || j.chain == "POSTROUTING" {
			rule[0] = "-o"
		}
		run(r, j.tool, append([]string{"-w", "-t", j.table, "-I", j.chain, "1"}, rule...)...)
		r.Cleanup(func() { run(r, j.tool, append([]string{"-w", "-t", j.table, "-D", j.chain}, rule...)...) })
	}
	before := TakeSnapshot(r)
	r.pause(usuallyMended) // for a mending that must not come
	sameForeign(r, "after rules of others came first", before)
	r.wholeAgain(conns)
	repairs := r.engine.Status().Repairs
	RemoveJumps(r.s.Backend)(r.T)
	r.repaired(repairs, atOnce+mendTime) // it may have looked at what the others did just now
	for key := range conns {             // and have begun to mend before the last jump was gone
		r.Eventually("service after the jumps were removed", func() error { _, err := r.ask(r.w.client, key); return err })
	}
	sameForeign(r, "after mending with rules of others first", before)
	r.wholeAgain(conns)
}

// Damages are the ways to break what a dataplane and its Host keep in iptables of that backend (see Subject.Backend), in
// ipsets, and on devices.
func Damages(backend string) map[string]func(t testing.TB) {
	return map[string]func(t testing.TB){
		"tables":       FlushTables(backend),
		"chain-nat":    FlushChain(backend, "nat"),
		"chain-filter": FlushChain(backend, "filter"),
		"chain-mangle": FlushChain(backend, "mangle"),
		"jumps":        RemoveJumps(backend),
		"entries":      FlushSets,
		"sets":         DestroySets(backend),
		"addresses":    RemoveAddresses,
	}
}

// Scratches are ways to break what serves the service at heldVIP, in ipsets and on devices, and nothing else.
func Scratches() map[string]func(t testing.TB) {
	return map[string]func(t testing.TB){
		"entry":   func(t testing.TB) { removeEntry(t, heldVIP()[0]) },
		"entry6":  func(t testing.TB) { removeEntry(t, heldVIP()[1]) },
		"address": func(t testing.TB) { removeAddresses(t, heldVIP().slice()) },
	}
}

// removeEntry takes one entry about an address from our ipsets.
func removeEntry(t testing.TB, vip netip.Addr) {
	t.Helper()
	for _, name := range ourSets(t) {
		for line := range strings.Lines(run(t, "ipset", "save", name)) {
			words := strings.Fields(line) // add NAME ENTRY ...
			if words[0] == "add" && strings.HasPrefix(words[2], vip.String()+",") {
				run(t, "ipset", "del", name, words[2])
				return
			}
		}
	}
	t.Skipf("no ipset has an entry about %s", vip)
}

// FlushTables is a Damage: it empties every chain that iptables knows, as a firewall does that starts anew.
func FlushTables(backend string) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		for _, restore := range (&Subject{Backend: backend}).tools("-restore") { // one command: mending may come between two
			pipe(t, "*nat\n-F\nCOMMIT\n*mangle\n-F\nCOMMIT\n*filter\n-F\nCOMMIT\n", restore, "--noflush", "--wait")
		}
	}
}

// FlushChain is a Damage: it empties one of our chains in a table, the last.
func FlushChain(backend, table string) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		s := &Subject{Backend: backend}
		chains := s.ourChains(t, table)
		if len(chains) == 0 {
			t.Skipf("it has no chain in table %s", table)
		}
		last := chains[len(chains)-1]
		run(t, last.tool, "-w", "-t", last.table, "-F", last.name)
	}
}

// RemoveJumps is a Damage: nothing leads to our chains any more.
func RemoveJumps(backend string) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		s := &Subject{Backend: backend}
		jumps := s.ourJumps(t)
		if len(jumps) == 0 {
			t.Fatal("nothing leads to chains of ours")
		}
		restores := s.tools("-restore")
		for i, tool := range s.tools("") { // one command: mending may come between two
			var lines strings.Builder
			for _, j := range jumps {
				if j.tool == tool {
					fmt.Fprintf(&lines, "*%s\n-D %s %s\nCOMMIT\n", j.table, j.chain, j.rule)
				}
			}
			pipe(t, lines.String(), restores[i], "--noflush", "--wait")
		}
	}
}

// FlushSets is a Damage: it empties our ipsets.
func FlushSets(t testing.TB) {
	t.Helper()
	sets := ourSets(t)
	if len(sets) == 0 {
		t.Skip("it has no ipsets")
	}
	pipe(t, "flush "+strings.Join(sets, "\nflush ")+"\n", "ipset", "restore")
}

// DestroySets is a Damage: it removes all ipsets, and all chains, which could not be without.
func DestroySets(backend string) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		if len(ourSets(t)) == 0 {
			t.Skip("it has no ipsets")
		}
		lab.Eventually(t, atOnce, "destroying sets before the next mending", func() error {
			for _, restore := range (&Subject{Backend: backend}).tools("-restore") {
				pipe(t, "*nat\nCOMMIT\n*mangle\nCOMMIT\n*filter\nCOMMIT\n", restore, "--wait") // which removes what it does not name
			}
			if out, err := exec.Command("ipset", "destroy").CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
}

func ourSets(t testing.TB) []string {
	t.Helper()
	lab.Need(t, "ipset")
	var ours []string
	for name := range strings.FieldsSeq(run(t, "ipset", "list", "-n")) {
		if ownPrefix.MatchString(name) {
			ours = append(ours, name)
		}
	}
	return ours
}

// ourChain is a chain with our prefix.
type ourChain struct{ tool, table, name string }

// ourChains are those of a table, or of all; both families'.
func (s *Subject) ourChains(t testing.TB, table string) []ourChain {
	t.Helper()
	var all []ourChain
	s.saved(t, func(tool, in, line string) {
		if name, ok := strings.CutPrefix(line, ":"); ok && ownPrefix.MatchString(line) && (table == "" || table == in) {
			all = append(all, ourChain{tool, in, strings.Fields(name)[0]})
		}
	})
	return all
}

// ourJump is a rule in one of the kernel's own chains that leads to one of ours.
type ourJump struct {
	tool, table, chain string
	rule               string // without "-A" and the chain
}

func (s *Subject) ourJumps(t testing.TB) []ourJump {
	t.Helper()
	var all []ourJump
	s.saved(t, func(tool, table, line string) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "-A" {
			return
		}
		at := ourJump{tool: tool, table: table, chain: words[1]}
		if ownPrefix.MatchString(line) && !ownPrefix.MatchString(at.chain) {
			at.rule = strings.Join(words[2:], " ")
			all = append(all, at)
		}
	})
	return all
}

// saved calls f for each line that iptables-save prints of each table, in both families, with the tool that changes
// them.
func (s *Subject) saved(t testing.TB, f func(tool, table, line string)) {
	t.Helper()
	tools, savers := s.tools(""), s.tools("-save")
	for i := range tools {
		if _, err := exec.LookPath(savers[i]); err != nil {
			continue
		}
		table := ""
		for line := range strings.Lines(run(t, savers[i])) {
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = strings.TrimSpace(name)
			}
			f(tools[i], table, line)
		}
	}
}

// RemoveAddresses is a Damage: it takes every VIP from whatever device holds it.
func RemoveAddresses(t testing.TB) {
	t.Helper()
	removeAddresses(t, nil)
}

// removeAddresses removes some VIPs, or all where none are named.
func removeAddresses(t testing.TB, vips []netip.Addr) {
	t.Helper()
	all := heldVIPs(t)
	if vips != nil {
		all = slices.DeleteFunc(all, func(h held) bool {
			a, _ := netip.AddrFromSlice(h.IP)
			return !slices.Contains(vips, a.Unmap())
		})
	}
	if len(all) == 0 {
		t.Fatal("no device holds a VIP")
	}
	for _, h := range all {
		if err := netlink.AddrDel(h.link, &h.Addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Fatalf("removing %s from %s: %v", h.IPNet, h.link.Attrs().Name, err)
		}
	}
}

// held is a VIP on a device.
type held struct {
	netlink.Addr
	link netlink.Link
}

// heldVIPs are those that the host has.
func heldVIPs(t testing.TB) []held {
	t.Helper()
	var all []held
	for _, link := range listed(t, netlink.LinkList) {
		for _, a := range listed(t, func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) }) {
			if isVIP(a.IP) {
				all = append(all, held{a, link})
			}
		}
	}
	return all
}

// listed repeats a listing that the kernel interrupts because something has changed in the middle of it.
func listed[T any](t testing.TB, list func() ([]T, error)) (all []T) {
	t.Helper()
	lab.Eventually(t, settleTime, "a listing without a change in the middle", func() (err error) {
		all, err = list()
		return err
	})
	return all
}

func isVIP(ip []byte) bool {
	a, ok := netip.AddrFromSlice(ip)
	for _, vips := range vipRanges {
		if ok && netip.MustParsePrefix(vips).Contains(a.Unmap()) {
			return true
		}
	}
	return false
}
