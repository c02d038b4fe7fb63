package guard

import (
	"errors"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// TestLossesByMode makes the guard unavailable for each kind of frontend. In each mode, lost must
// return a problem with the reason for exactly the features that the mode loses.
func TestLossesByMode(t *testing.T) {
	const (
		ports, ranges, drops, others = "answer on every port", "source_ranges are not enforced", "reject clients despite", "might reach a program"
		snat, segments, direct       = "node ports, snat", "mss is not enforced", "tracks dr and tunnel connections"
	)
	all := []*balancer.Frontend{
		frontend("10.96.0.1:80", sources("10.0.0.0/8")), frontend("10.96.0.1:81", dropping),
		frontend("10.96.0.1:82", func(f *balancer.Frontend) { f.Backends = nil }), frontend("10.96.0.1:83", func(f *balancer.Frontend) { f.MSS = 1300 }),
	}
	tunnel := frontend("10.96.0.1:84", forward(balancer.TunnelForward))
	for _, c := range []struct {
		name      string
		mode      dataplane.Needs
		frontends []*balancer.Frontend
		want      []string
	}{
		{"nothing wanted", dataplane.Needs{Forward: true}, nil, nil},
		{"userspace", dataplane.Needs{}, all, []string{ports, ranges + " by the kernel: vipd enforces them itself", drops, others, segments}},
		{"forwarding", dataplane.Needs{Forward: true}, all, []string{ports, ranges + ": services with source_ranges are not served", drops, others, snat, segments}},
		{"ipvs", dataplane.Needs{Forward: true, LocalIn: true}, append(all, tunnel), []string{ports, ranges, drops, others, snat, segments, direct}},
	} {
		w := newWanted(inet.IPv4, Options{Mode: c.mode, MasqueradeBit: 14})
		for _, f := range c.frontends {
			w.want(f, 1, false)
			w.want(f, 1, true)
			w.hold(f.Addr, 1)
		}
		got := w.lost(errors.New("no such table"))
		if len(got) != len(c.want) {
			t.Errorf("%s: lost() = %v, want %q", c.name, got, c.want)
			continue
		}
		for i, p := range got {
			if !strings.Contains(p.Text, c.want[i]) || !strings.HasSuffix(p.Text, "(ipv4): no such table") {
				t.Errorf("%s: problem %d = %q, want %q and the reason", c.name, i, p.Text, c.want[i])
			}
		}
	}
}
