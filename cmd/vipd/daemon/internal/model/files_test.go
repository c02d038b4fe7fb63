package model

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store/statedir"
)

// TestMemoryIsKept restarts the model. The model must still know everything that it remembered
// before, except entries that have expired.
func TestMemoryIsKept(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	vip := netip.MustParseAddr("10.96.0.10")
	key := balancer.Key{Addr: vip, Port: 80, Proto: balancer.TCP}
	at := func(n byte) balancer.BackendKey {
		return balancer.BackendKey{Frontend: key, Backend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 80)}
	}
	var m balancer.Memory
	m.Drains = m.Drains.Set(at(1), balancer.Drain{Until: now.Add(time.Hour)}).Set(at(2), balancer.Drain{Until: now.Add(time.Second)})
	m.DrainingVIPs = m.DrainingVIPs.Set(vip, balancer.Drain{Until: now.Add(time.Minute)})
	m.Holders = m.Holders.Set(key, "web")
	m.Ramps = m.Ramps.Set(at(3), balancer.Ramp{Since: now, Duration: 10 * time.Second, Step: 1}).Set(at(4), balancer.Ramp{Since: now, Duration: 2 * time.Second, Step: 1})
	m.Withdrawals = m.Withdrawals.Set(vip, balancer.Withdrawal{Withdrawn: true, Until: now.Add(5 * time.Second)})
	dir := statedir.New(t.TempDir(), func() {})
	f := newFiles(dir)
	f.keepMemory(m, m.Holders, now)
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	got, _ := f.load(now.Add(3 * time.Second))

	want := m
	want.Drains, want.Ramps = m.Drains.Delete(at(2)), m.Ramps.Delete(at(4)).Set(at(3), balancer.Ramp{Since: now, Duration: 10 * time.Second, Step: 4})
	compare(t, "drains", want.Drains, got.Drains)
	compare(t, "VIPs that go", want.DrainingVIPs, got.DrainingVIPs)
	compare(t, "holders", want.Holders, got.Holders)
	compare(t, "ramps", want.Ramps, got.Ramps)
	compare(t, "VIPs that are withdrawn", want.Withdrawals, got.Withdrawals)

	const behind = 8 * time.Hour // just after boot, a clock may be behind by this much
	got, _ = f.load(now.Add(-behind))
	compare(t, "drains by a clock that is behind", m.AdjustClock(-behind).Drains, got.Drains)
	compare(t, "VIPs that go by it", m.AdjustClock(-behind).DrainingVIPs, got.DrainingVIPs)

	for _, c := range []struct {
		name  string
		now   balancer.Memory
		worth bool
	}{
		{"nothing", m, false},
		{"a step", func() balancer.Memory {
			n := m
			n.Ramps = n.Ramps.Set(at(3), balancer.Ramp{Since: now, Duration: 10 * time.Second, Step: 2})
			return n
		}(), false},
		{"a ramp", func() balancer.Memory { n := m; n.Ramps = n.Ramps.Set(at(5), balancer.Ramp{Since: now}); return n }(), true},
		{"its end", func() balancer.Memory { n := m; n.Ramps = n.Ramps.Delete(at(3)); return n }(), true},
		{"a return", func() balancer.Memory { n := m; n.Withdrawals = n.Withdrawals.Delete(vip); return n }(), true},
	} {
		if got := worthSaving(m, c.now); got != c.worth {
			t.Errorf("%s: worth saving = %t, want %t", c.name, got, c.worth)
		}
	}
}

func compare[K snap.Ordered[K], V comparable](t *testing.T, what string, want, got snap.Map[K, V]) {
	t.Helper()
	list := func(m snap.Map[K, V]) (all []any) {
		for k, v := range m.All() {
			all = append(all, k, v)
		}
		return all
	}
	equal := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	if d := cmp.Diff(list(want), list(got), equal); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
