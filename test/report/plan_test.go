package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestPlace chooses where tests that need IPVS run, for different machines and flags.
func TestPlace(t *testing.T) {
	no := errors.New("none")
	needing := []pkg{{path: "vipd/x"}}
	for name, c := range map[string]struct {
		only            bool
		flags           []string
		noIPVS, noGuest error
		here, guest     bool
		want            []string
		note            string
	}{
		"all, IPVS here":           {noGuest: no, here: true, note: "run here"},
		"all, in a guest":          {noIPVS: no, here: true, guest: true, want: []string{"-skip=^TestIPVS"}, note: "in a guest"},
		"all, nowhere":             {noIPVS: no, noGuest: no, here: true, note: "skipped"},
		"only these, IPVS here":    {only: true, here: true, want: []string{"-run=^TestIPVS"}, note: "run here"},
		"only these, in a guest":   {only: true, noIPVS: no, guest: true, want: []string{"-run=^TestIPVS", "-skip=^TestIPVS"}, note: "in a guest"},
		"only these, nowhere":      {only: true, noIPVS: no, noGuest: no, here: true, want: []string{"-run=^TestIPVS"}, note: "skipped"},
		"only one, in a guest":     {only: true, flags: []string{"-run=TestIPVSX"}, noIPVS: no, guest: true, want: []string{"-run=TestIPVSX", "-skip=^TestIPVS"}, note: "in a guest"},
		"one of all, IPVS here":    {flags: []string{"-run=TestX"}, here: true, want: []string{"-run=TestX"}, note: "run here"},
		"two dashes, IPVS is here": {only: true, flags: []string{"--run=TestIPVSX"}, here: true, want: []string{"--run=TestIPVSX"}, note: "run here"},
	} {
		p := plan{here: true, flags: c.flags}
		p.place(needing, c.only, c.noIPVS, c.noGuest)
		if p.here != c.here || (p.guest != nil) != c.guest || !slices.Equal(p.flags, c.want) || !strings.Contains(p.note, c.note) {
			t.Errorf("%s: plan = %+v, want here = %t, guest = %t, flags %q, a note with %q", name, p, c.here, c.guest, c.want, c.note)
		}
	}
}

// TestPlanOfThisTree plans this tree. The plan must find package lab's own test by its name, and
// the packages that use lab by their imports.
func TestPlanOfThisTree(t *testing.T) {
	t.Chdir("../..")
	p, err := newPlan([]string{"-ipvs", "-count=1"})
	if err != nil || !slices.Contains(p.packages, "vipd/test/lab") || slices.Contains(p.packages, "vipd/test/wait") {
		t.Errorf("packages of -ipvs = %q, %v; want test/lab without test/wait", p.packages, err)
	}
	p, err = newPlan([]string{"-kernel", "./test/...", "./balancer"})
	if err != nil || !slices.Contains(p.packages, "vipd/test/lab") || !slices.Contains(p.packages, "vipd/test/packetflow") ||
		slices.Contains(p.packages, "vipd/balancer") || slices.Contains(p.packages, "vipd/dataplane/host") {
		t.Errorf("packages of -kernel = %q, %v; want test/lab and test/packetflow without balancer and dataplane/host", p.packages, err)
	}
}
