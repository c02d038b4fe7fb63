package guard

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/test/lab"
)

func ranged(open ...balancer.PortRange) *balancer.Frontend {
	f := frontend("10.96.0.1:80", sources("10.0.0.0/8"))
	f.Key.Port, f.Open = balancer.NewPortRange(80, 81), open
	return f
}

// TestRangesWithoutOpenPort prepares and finishes a guard whose only range has no open port, or is
// withdrawn. Both steps must succeed.
func TestRangesWithoutOpenPort(t *testing.T) {
	lab.Require(t)
	conn := openTables(t)
	withdrawn := ranged(balancer.NewPortRange(80, 81))
	withdrawn.Withdrawn = true
	for name, f := range map[string]*balancer.Frontend{"no open port": ranged(), "withdrawn": withdrawn} {
		h := newHistory(t, 1, conn, dataplane.Needs{Forward: true})
		h.g.hold(addrOf("10.96.0.2"), 1) // without a held address, a withdrawn frontend needs no guard
		h.g.want(f, 1, false)
		if err := h.g.prepare(t.Context()); err != nil {
			t.Errorf("%s: prepare = %v, want nil", name, err)
		}
		h.g.want(f, 1, true)
		if err := h.g.finish(t.Context()); err != nil {
			t.Errorf("%s: finish = %v, want nil", name, err)
		}
		if err := h.g.leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRangesKeepEqualElements replaces a frontend with an equal frontend. No change must be queued.
// If one of two ports closes, the element of the other port must stay.
func TestRangesKeepEqualElements(t *testing.T) {
	var r openRanges
	l := newLayout(inet.IPv4)
	steps := func() int {
		var tx nft.Tx
		r.write(&tx, l)
		return tx.Len()
	}
	r.want(ranged(80, 81), 1, false)
	if got := steps(); got != 1 {
		t.Errorf("steps of the first write = %d, want 1", got)
	}
	r.want(ranged(80, 81), -1, false)
	r.want(ranged(80, 81), 1, false)
	if got := steps(); got != 0 {
		t.Errorf("steps after the replacement = %d, want 0", got)
	}
	r.want(ranged(80, 81), -1, false)
	r.want(ranged(80), 1, false)
	var tx nft.Tx
	r.write(&tx, l)
	if got, want := tx.Text(), "delete element ip vipd-guard ranges { 10.96.0.1 . tcp . 81 }\n"; got != want {
		t.Errorf("after port 81 was closed: write = %q, want %q", got, want)
	}
}
