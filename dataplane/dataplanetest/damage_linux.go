package dataplanetest

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
)

// repairTime is how long repairing damage may take on an idle machine, with the engine's default
// ProbeInterval.
const repairTime = 1500 * time.Millisecond

// testDamage damages the dataplane in each way while connections are open. The damage must be
// repaired, idle connections must survive, and new clients must be served.
func testDamage(t *testing.T, s *Subject) {
	if len(s.Damage)+len(s.Scratches) == 0 {
		t.Skip("the subject has no kinds of damage")
	}
	s.stage = newStage(t, s)
	for _, name := range slices.Sorted(maps.Keys(s.Damage)) {
		s.sub(t, name, func(t *testing.T) {
			r := newDamageable(t, s)
			conns := openOfEach(r)
			breakAndAwaitRepair(r, name, s.Damage[name])
			checkRepaired(r, name, conns)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Scratches)) {
		s.sub(t, name, func(t *testing.T) {
			r := newDamageable(t, s)
			conns, others := openOfEach(r), startPulses(r, bystander())
			breakAndAwaitRepair(r, name, s.Scratches[name])
			checkRepaired(r, name, conns)
			checkUndisturbed(r, others, "damage to another service, and its repair")
		})
	}
	s.sub(t, "others-first", func(t *testing.T) {
		r := newDamageable(t, s)
		s.hasChains(t)
		testOthersFirst(r)
	})
}

// breakAndAwaitRepair calls damage, and waits for the repair. Restored addresses do not count as
// the repair, because every sync restores them.
func breakAndAwaitRepair(r *rig, name string, damage func(t testing.TB)) {
	r.Helper()
	repairs, addresses := r.engine.Status().Repairs, len(heldVIPs(r))
	began := time.Now()
	damage(r.T)
	lab.Eventually(r, settleTime, "the repair", func() error {
		s := r.engine.Status()
		if s.Last.After(began) && s.LastError == "" {
			return nil // a concurrent sync may have repaired the damage without counting it
		}
		if strings.HasPrefix(name, "address") && len(heldVIPs(r)) == addresses {
			return nil
		}
		if s.Repairs <= repairs || s.LastError != "" {
			return fmt.Errorf("repairs = %d, want more than %d; last sync at %s, error %q", s.Repairs, repairs, s.Last.Format(time.StampMilli), s.LastError)
		}
		return nil
	})
	awaitService(r)
	r.Logf("repaired after %v", time.Since(began).Round(time.Millisecond))
}

// awaitService waits until the VIPs' clients get answers, and the service without endpoints refuses
// its clients.
func awaitService(r *rig) {
	r.Helper()
	const what = "service after the repair"
	for _, key := range keysOf(r.w.vip, balancer.TCP, balancer.UDP) {
		for _, from := range []*lab.NS{r.w.client, r.w.host} {
			lab.Eventually(r, settleTime, what, func() error {
				_, err := r.askFrom(from, netip.Addr{}, key, silence)
				return err
			})
			lab.Eventually(r, settleTime, what, func() error {
				return r.refusal(from, keyOf(vipN(40).inFamilyOf(key.Addr), vipPort, key.Proto), silence)
			})
		}
	}
}

// bystander returns the VIPs of a service that the functions in Scratches do not affect.
func bystander() addrs { return vipN(31) }

// newDamageable returns a rig whose services use all parts of a Host, with the engine's default
// ProbeInterval. Each damage function has its own rig, because engines and dataplanes may check
// less often while rules change continuously.
func newDamageable(t *testing.T, s *Subject) *rig {
	t.Helper()
	r := onStage(t, s)
	r.driveEvery(time.Second)
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.SourceRanges = prefixes("10.0.0.0/8", "fd00::/8")
	r.apply(web, newService("empty", vipN(40)), newService("bystander", bystander(), endpoints(r.w.servers...)...))
	return r
}

// openOfEach opens a connection or flow to each frontend of the service "web".
func openOfEach(r *rig) map[balancer.Key]net.Conn {
	r.Helper()
	conns := map[balancer.Key]net.Conn{}
	for _, k := range keysOf(r.w.vip, balancer.TCP, balancer.UDP) {
		conns[k], _ = r.mustOpen(r.w.client, netip.Addr{}, k)
	}
	return conns
}

// awaitRepairs waits until the engine has made more repairs than before, and reports no error.
func awaitRepairs(r *rig, before int) {
	r.Helper()
	lab.Eventually(r, settleTime, "the repair", func() error {
		if s := r.engine.Status(); s.Repairs <= before || s.LastError != "" {
			return fmt.Errorf("repairs = %d, want more than %d; last sync at %s, error %q", s.Repairs, before, s.Last.Format(time.StampMilli), s.LastError)
		}
		return nil
	})
}

// checkRepaired is like checkWhole, but if the damage itself ends connections, it checks new
// connections instead of the open ones.
func checkRepaired(r *rig, damage string, conns map[balancer.Key]net.Conn) {
	r.Helper()
	if why, ends := r.s.Ends[damage]; ends {
		r.Log("connections may end: ", why)
		for _, c := range conns {
			_ = c.Close()
		}
		conns = openOfEach(r)
	}
	checkWhole(r, conns)
}

// checkWhole checks that the open connections still work, and that new clients are served or
// refused as configured.
func checkWhole(r *rig, conns map[balancer.Key]net.Conn) {
	r.Helper()
	for key, c := range conns {
		if err := alive(c, atOnce); err != nil {
			r.Errorf("%s: error of an earlier connection = %v, want nil", key, err)
		}
		r.mustAsk(r.w.client, key)
		r.mustAsk(r.w.host, key)
		r.refused(r.w.client, keyOf(vipN(40).inFamilyOf(key.Addr), vipPort, key.Proto))
	}
}

// testOthersFirst inserts a foreign rule before vipd's jump in each built-in chain that jumps to
// vipd's chains. The foreign rule must stay first, and the service must work.
func testOthersFirst(r *rig) {
	conns := openOfEach(r)
	jumps := r.s.ourJumps(r.T)
	for _, j := range jumps {
		rule := []string{"-i", "other0", "-j", "RETURN"}
		if j.chain == "OUTPUT" || j.chain == "POSTROUTING" {
			rule[0] = "-o"
		}
		run(r, j.tool, append([]string{"-w", "-t", j.table, "-I", j.chain, "1"}, rule...)...)
		r.Cleanup(func() { run(r, j.tool, append([]string{"-w", "-t", j.table, "-D", j.chain}, rule...)...) })
	}
	before := takeSnapshot(r)
	r.pause(repairTime) // no repair may happen during this time
	sameForeign(r, "after foreign rules were inserted first", before)
	checkWhole(r, conns)
	repairs := r.engine.Status().Repairs
	r.s.removeJumps(r.T)
	awaitRepairs(r, repairs)
	awaitService(r) // the counted repair may have started before the last jump was removed
	sameForeign(r, "after a repair with foreign rules first", before)
	checkWhole(r, conns)
}
