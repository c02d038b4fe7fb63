package main

import (
	"regexp"
	"slices"
	"testing"

	"vipd/test/lab"
	"vipd/test/wait"
)

// TestIPVSQuick measures ipvs mode at small sizes. There must be a positive figure for each row.
func TestIPVSQuick(t *testing.T) {
	lab.NeedIPVS(t)
	needs(t, ipvsBackend)
	lab.Need(t, "ipvsadm")
	which := "ipvs mode|load of 30" // TestQuick measures the rows of iptables mode
	if wait.Emulated() && !wait.Soaking() {
		which = "load of 30"
	}
	rows := chosen(ipvsPlan(quickIPVSSizes()), regexp.MustCompile(which))
	values, err := run(t.Context(), ipvsBackend, rows, quickEffort(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return r.what.isPath() && len(values[r.name]) == 0 }) // a busy machine loses packets, so these rows may be missing
	all := figures(rows, ipvsBackend, values)
	if len(all) != len(rows) {
		t.Fatalf("figures = %d, want %d", len(all), len(rows))
	}
	for i, f := range all {
		t.Logf("%s: %s", f.Row, f.cell(rows[i].what))
		if f.Value <= 0 {
			t.Errorf("%s = %g, want more than 0", f.Row, f.Value)
		}
	}
}
