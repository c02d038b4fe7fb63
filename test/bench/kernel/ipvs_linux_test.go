package main

import (
	"regexp"
	"slices"
	"testing"

	"vipd/test/lab"
	"vipd/test/wait"
)

// TestIPVSQuick measures ipvs mode at small sizes. Adopting must change nothing. Replacing an
// endpoint must need three messages and few more: one adds the new endpoint, one stops new
// connections to the old endpoint, and one deletes it.
func TestIPVSQuick(t *testing.T) {
	lab.NeedIPVS(t)
	needs(t, ipvsBackend)
	for _, tool := range []string{"ipvsadm", "ip"} {
		lab.Need(t, tool)
	}
	which := "ipvs mode|load of 30|look|Sn|messages|VIPs" // iptables mode has a test of its own
	if wait.Emulated() && !wait.Soaking() {
		which = "messages"
	}
	rows := chosen(ipvsPlan(quickIPVSSizes()), regexp.MustCompile(which))
	values, err := run(t.Context(), ipvsBackend, rows, quickEffort(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return r.what.isPath() && len(values[r.name]) == 0 }) // on a busy machine
	all := figures(rows, ipvsBackend, values)
	if len(all) != len(rows) {
		t.Fatalf("figures = %d of %d rows", len(all), len(rows))
	}
	for i, f := range all {
		t.Logf("%s: %s", f.Row, f.cell(rows[i].what))
		low, high := 0.0, 1e9
		switch rows[i].what {
		case adoptingMessages:
			low, high = -1, 0
		case endpointMessages:
			low, high = 2, 5
		}
		if f.Value <= low || f.Value > high {
			t.Errorf("%s = %g, want more than %g and at most %g", f.Row, f.Value, low, high)
		}
	}
}
