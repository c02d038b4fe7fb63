package counters

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/dataplane"
)

// meter is a dataplane that has counted something.
type meter struct {
	dataplane.Dataplane
	counted []dataplane.FrontendCount
}

func (m *meter) DialRetries() (uint64, bool)         { return 0, false }
func (m *meter) Counters() []dataplane.FrontendCount { return m.counted }

// counted is one port's counts: connections, bytes and what is live, by endpoint.
func counted(port string, in uint64, backends ...dataplane.BackendCount) dataplane.FrontendCount {
	f := dataplane.FrontendCount{Service: "web", Port: port, In: in, Out: 2 * in, Backends: backends}
	for _, b := range backends {
		f.Connections += b.Connections
	}
	return f
}

// TestTallyOfAModeThatComesBack: what the kernel went on counting while a mode was left is told once, whether the next
// dataplane of its kind goes on with the kernel's counters or begins anew.
func TestTallyOfAModeThatComesBack(t *testing.T) {
	one, two := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:80")
	var all Process
	count := func() dataplane.FrontendCount { return all.Counts()[Port{"web", "http"}] }
	first := &meter{counted: []dataplane.FrontendCount{counted("http", 500, dataplane.BackendCount{Backend: one, Connections: 10, Active: 3})}}
	all.Begin(first, false)
	between := &meter{counted: []dataplane.FrontendCount{counted("http", 70, dataplane.BackendCount{Backend: two, Connections: 7})}}
	all.Begin(between, false)
	all.End(first)
	resumed := &meter{counted: []dataplane.FrontendCount{counted("http", 400, dataplane.BackendCount{Backend: one, Connections: 8, Active: 2})}}
	all.Begin(resumed, true) // an endpoint had counted 2 that is gone
	all.End(between)
	want := counted("http", 570, dataplane.BackendCount{Backend: one, Connections: 10, Active: 2}, dataplane.BackendCount{Backend: two, Connections: 7})
	if d := cmp.Diff(want, count(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("when it is back (-want +got):\n%s", d)
	}
	resumed.counted = []dataplane.FrontendCount{
		counted("http", 450, dataplane.BackendCount{Backend: one, Connections: 9}, dataplane.BackendCount{Backend: two, Connections: 1}),
		counted("more", 5, dataplane.BackendCount{Backend: two, Connections: 1}),
	}
	for _, when := range []string{"after more", "when it is gone"} {
		want = counted("http", 620, dataplane.BackendCount{Backend: one, Connections: 11}, dataplane.BackendCount{Backend: two, Connections: 8})
		if d := cmp.Diff(want, count(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
			t.Errorf("%s (-want +got):\n%s", when, d)
		}
		if n := all.Counts()[Port{"web", "more"}].Connections; n != 1 {
			t.Errorf("%s: another port has %d connections, want 1", when, n)
		}
		all.End(resumed)
	}
}

// TestTallyOfWhatWasForgotten: a dataplane that has forgotten what was gone for long, and counts it anew, is not told of with
// counts that have wrapped around.
func TestTallyOfWhatWasForgotten(t *testing.T) {
	one := netip.MustParseAddrPort("192.0.2.1:80")
	var all Process
	resumed := &meter{counted: []dataplane.FrontendCount{counted("http", 400, dataplane.BackendCount{Backend: one, Connections: 8})}}
	all.Begin(resumed, true)
	want := counted("http", 30, dataplane.BackendCount{Backend: one, Connections: 2})
	resumed.counted = []dataplane.FrontendCount{want}
	if d := cmp.Diff(want, all.Counts()[Port{"web", "http"}], cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
