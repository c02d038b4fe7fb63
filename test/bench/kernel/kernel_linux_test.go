package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) != "" {
		main()
		return
	}
	lab.Main(m)
}

// TestQuick measures everything at small sizes. Each row must have a figure. Only make bench
// compares figures, because other work disturbs them here.
func TestQuick(t *testing.T) {
	for _, b := range backends() {
		t.Run(string(b), func(t *testing.T) {
			needs(t, b)
			if b == legacy && !wait.Soaking() {
				t.Skip("runs only in make soak, because the test with nft covers the same")
			}
			rows := plan(quickSizes())
			values, err := run(t.Context(), b, rows, quickEffort(), t.Logf)
			if err != nil {
				t.Fatal(err)
			}
			all := map[string]figure{}
			for _, f := range figures(rows, b, values) {
				all[f.Row] = f
			}
			for _, r := range rows {
				f, exists := all[r.name]
				if !exists && r.what.isPath() { // a busy machine loses packets
					continue
				}
				t.Logf("%s: %s", r.name, f.cell(r.what))
				if f.Value <= 0 && r.what != idle || f.Low > f.Value || f.High < f.Value {
					t.Errorf("%s = %+v, want a median between its limits", r.name, f)
				}
			}
			if got, want := int(all["rules for 500, list"].Value), 5+500*(1+1+3*5); got != want {
				t.Errorf("rules of a list of 500 with 5 endpoints each = %d, want %d", got, want)
			}
			if n := all["rules for 200"].Value; n < 200*5 {
				t.Errorf("rules of 200 services with 5 endpoints each = %.0f, want at least one for each endpoint", n)
			}
		})
	}
}

// TestPacketsAreFirstPackets sends packets through a box. The kernel must look up the DNAT rule for
// every packet, which it does only for the first packet of a connection. While the box drops
// packets, no packet may leave and no connection may be remembered.
func TestPacketsAreFirstPackets(t *testing.T) {
	for _, b := range backends() {
		t.Run(string(b), func(t *testing.T) {
			needs(t, b)
			if b == legacy && !wait.Soaking() { // the test with nft is stricter
				t.Skip("runs only in make soak, because the test with nft covers the same")
			}
			x := loaded(t, b, specOf(floorLayout, 1, 10))
			f, err := newFlood(x, vips(1))
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			if err := prove(x, f); err != nil {
				t.Fatal(err)
			}
			if _, err := x.ask(request{Do: "shut"}); err != nil {
				t.Fatal(err)
			}
			before := translated(t, x)
			if _, err := f.send(1000); err != nil {
				t.Fatal(err)
			}
			if n := translated(t, x) - before; n != 1000 {
				t.Errorf("translated packets = %d, want 1000", n)
			}
			if err := prove(x, f); err == nil || !strings.Contains(err.Error(), "of 200 packets 0 have") {
				t.Errorf("prove while packets are dropped: error = %v, want an error that no packets arrived", err)
			}
			if _, err := x.ask(request{Do: "open"}); err != nil {
				t.Fatal(err)
			}
			if err := prove(x, f); err != nil {
				t.Errorf("prove after the drop: error = %v, want none", err)
			}
			f.to = vips(2)[1:]
			if err := prove(x, f); err == nil {
				t.Error("prove of an address without a VIP: error = nil, want an error")
			}
		})
	}
}

// translated returns the number of packets that matched the box's only DNAT rule.
func translated(t *testing.T, x *box) (n int) {
	t.Helper()
	out, err := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", x.cmd.Process.Pid), "--",
		fmt.Sprintf("iptables-%s-save", x.backend), "-c", "-t", "nat").CombinedOutput()
	if err != nil {
		t.Fatalf("reading the counters of %s: %v\n%s", x, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "-j DNAT") {
			if _, err := fmt.Sscanf(line, "[%d:", &n); err != nil {
				t.Fatalf("reading %q: %v", line, err)
			}
			return n
		}
	}
	t.Fatalf("rules of %s =\n%s\nwant a DNAT rule", x, out)
	return 0
}

// TestListChanges makes changes of every kind. After each change, the list must serve exactly the
// current services.
func TestListChanges(t *testing.T) {
	for _, b := range backends() {
		t.Run(string(b), func(t *testing.T) {
			needs(t, b)
			if b == legacy && !wait.Soaking() { // the test with nft is stricter
				t.Skip("runs only in make soak, because the test with nft covers the same")
			}
			const services, endpoints = 20, 3
			x := loaded(t, b, specOf(listLayout, services, endpoints))
			all := vips(services + 2)
			reached := func(service int) error {
				f, err := newFlood(x, all[service:service+1])
				if err != nil {
					t.Fatal(err)
				}
				defer f.close()
				return prove(x, f)
			}
			for i, want := range []bool{true, true, true, false} {
				kind := []measure{endpointChanged, serviceAdded, serviceAdded, serviceRemoved}[i]
				if _, err := x.ask(request{Do: "change", Measure: kind, N: []int{0, 0, 1, 0}[i]}); err != nil {
					t.Fatal(err)
				}
				service := []int{services / 2, services, services + 1, services + 1}[i]
				if err := reached(service); (err == nil) != want {
					t.Errorf("service %d after %s: error = %v, want served = %t", service, kind, err, want)
				}
			}
			if err := reached(0); err != nil {
				t.Errorf("unchanged service: error = %v, want none", err)
			}
		})
	}
}

func loaded(t *testing.T, b backend, s spec) *box {
	t.Helper()
	x, err := newBox(context.Background(), 0, b, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.close(); err != nil {
			t.Errorf("ending %s: %v", x, err)
		}
		if err := awaitGone(x.link.Attrs().Name); err != nil {
			t.Error(err)
		}
	})
	if _, err := x.ask(request{Do: "load", Backend: b, Spec: s, Peer: x.link.Attrs().HardwareAddr.String()}); err != nil {
		t.Fatal(err)
	}
	return x
}

func needs(t *testing.T, b backend) {
	t.Helper()
	lab.Require(t)
	for _, tool := range []string{"", "-restore", "-save"} {
		lab.Need(t, fmt.Sprintf("iptables-%s%s", b, tool))
	}
	lab.Need(t, "ipset")
}

// TestFigures computes figures from samples. A ratio must be the median of the rounds' ratios, and
// the limit must apply to the ratio.
func TestFigures(t *testing.T) {
	rows := []row{
		{name: "a", what: anyVIP},
		{name: "b", what: anyVIP, against: "a", limits: [2]float64{2.5, 1.5}},
		{name: "c", what: loading, limits: [2]float64{1, 7}},
	}
	all := samples{"a": {1, 2, 10, 3, 4}, "b": {2, 4, 20, 6, 12}, "c": {7}}
	for i, b := range backends() {
		got := figures(rows, b, all)
		want := []string{
			"3.00 us (2.00 to 4.00)",
			[]string{"6.00 us, 2.00 x (2.00 to 2.00), at most 2.5", "**6.00 us, 2.00 x (2.00 to 2.00), at most 1.5**"}[i],
			[]string{"**7.00 s, at most 1**", "7.00 s, at most 7"}[i],
		}
		for j := range rows {
			if cell := got[j].cell(rows[j].what); cell != want[j] {
				t.Errorf("%s of %s = %s, want %s", rows[j].name, b, cell, want[j])
			}
		}
	}
}

// TestCompletePaths sends packets through hosts that forward them. All packets of a path must leave
// the host, except those to another host's link address. Before datagrams are measured, their flows
// must have answers.
func TestCompletePaths(t *testing.T) {
	needs(t, nft)
	for _, r := range throughRows(false) {
		t.Run(r.name, func(t *testing.T) {
			x := loaded(t, nft, r.box)
			paths, err := aim([]row{r}, map[spec]*box{r.box: x})
			for _, p := range paths {
				defer p.flood.close()
			}
			if err != nil {
				t.Fatal(err)
			}
			err = prove(x, paths[0].flood)
			if r.what == nowhere {
				if err == nil || !strings.Contains(err.Error(), "of 200 packets 0 have") {
					t.Errorf("packets to another host: error = %v, want an error that no packets left", err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if r.box.Through == established && r.box.Layout == floorLayout {
				if n := translated(t, x); n != flowCount {
					t.Errorf("translated packets = %d, want %d, one for each flow", n, flowCount)
				}
			}
		})
	}
}
