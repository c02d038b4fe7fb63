package nftables

import (
	"context"
	"math"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/dataplane"
)

// explain explains connections to a frontend from the host with this number.
func (s *segment) explain(f *balancer.Frontend, number int, port uint16) dataplane.Explanation {
	s.Helper()
	x, err := s.d.Explain(s.Context(), f, netip.AddrPortFrom(s.address(f.Addr, number), port))
	if err != nil {
		s.Fatal(err)
	}
	return x
}

func missing(x dataplane.Explanation) bool {
	return slices.ContainsFunc(x.Objects, func(o dataplane.Object) bool { return o.Missing })
}

// TestDirectExplain opens connections and explains them. The explanation must name the server that
// answered. If the client's port is unknown, each of the two servers must have a share of about one
// half.
func TestDirectExplain(t *testing.T) {
	s := newSegment(t, 2)
	s.apply(s.all(1, 2)...)
	for key, f := range s.applied {
		for range 5 {
			c, a, err := s.ask(key)
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			x := s.explain(f, 2, a.Client.Port())
			want := s.address(key.Addr, map[string]int{"s1": 11, "s2": 12}[a.Server])
			if len(x.Shares) != 1 || x.Shares[0].Backend.Addr() != want || x.Shares[0].Part != 1 || !x.Unchanged || missing(x) {
				t.Errorf("%s from %s: explanation = %+v, want only %s, the server that answered", key, a.Client, x, want)
			}
		}
		x, sum := s.explain(f, 2, 0), 0.0
		for _, share := range x.Shares {
			sum += share.Part
		}
		if want := 2; key.Proto == balancer.TCP && len(x.Shares) != want || math.Abs(sum-1) > 1e-9 || missing(x) {
			t.Errorf("%s from an unknown port: explanation = %+v, want %d shares that add up to 1", key, x, want)
		}
		if x := s.explain(f, 1, 0); x.Unchanged || len(x.Shares) != 2 || !strings.Contains(x.Choice, "this host's own programs") {
			t.Errorf("%s from the host: explanation = %+v, want nat to both servers", key, x)
		}
	}
	f := s.applied[balancer.Key{Addr: segmentVIPs[0], Port: 80, Proto: balancer.TCP}]
	s.lab.Host().Exec("nft", "flush", "map", "netdev", "vipd", "counted4")
	if x := s.explain(f, 2, 0); !missing(x) || len(x.Shares) != 0 {
		t.Errorf("without slots: explanation = %+v, want no shares, and a missing object", x)
	}
}

// TestDirectExplainRouted uses an endpoint behind a router, which direct routing can't reach. The
// explanation must divide the clients between nat and direct routing.
func TestDirectExplainRouted(t *testing.T) {
	s := newSegment(t, 1)
	s.lab.Host().Route("10.9.0.0/24", "10.4.0.11")
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1)
	f.Backends = append(f.Backends, balancer.Backend{Addr: netip.MustParseAddrPort("10.9.0.9:80"), State: balancer.Active, Weight: 1})
	s.apply(f)
	x, parts := s.explain(f, 2, 0), map[string]float64{}
	for _, share := range x.Shares {
		parts[share.Backend.Addr().String()] = share.Part
	}
	if n := parts["10.4.0.11"]; n < 0.65 || n > 0.85 || math.Abs(n+parts["10.9.0.9"]-1) > 1e-9 || !strings.Contains(x.Choice, " slots use nat, because") {
		t.Errorf("explanation = %+v, want a share of 3/4 for 10.4.0.11: 1/2 by direct routing and 1/4 by nat", x)
	}
	routed := *f
	routed.Backends = f.Backends[1:]
	s.apply(&routed)
	if x := s.explain(&routed, 2, 4000); x.Unchanged || len(x.Shares) != 1 || !strings.Contains(x.Choice, "10.9.0.9 is not a neighbor") {
		t.Errorf("without a neighbor among the endpoints: explanation = %+v, want nat", x)
	}
}

// TestDirectRender loads a rendered table into the kernel with nft. Except for rules that nft can't
// read, this table must equal the table that Apply creates.
func TestDirectRender(t *testing.T) {
	s := newSegment(t, 2)
	all := s.all(1, 2)
	all[0].Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	s.apply(all...)
	list := func() string { return s.lab.Host().Exec("nft", "list", "table", "netdev", "vipd") }
	applied := list()
	text, err := RenderDirect(all)
	if err != nil {
		t.Fatal(err)
	}
	if want := regexp.MustCompile(`(?m)^# 10\.96\.0\.1:80/tcp: \d+ slots of 10\.4\.0\.11 through lan, \d+ slots of 10\.4\.0\.12 through lan$`); !want.MatchString(text) {
		t.Errorf("Render = %.300q..., want a match for %s", text, want)
	}
	s.lab.Host().Exec("nft", "delete", "table", "netdev", "vipd")
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft -f: %v\n%.2000s", err, out)
	}
	if diff := cmp.Diff(sortedLines(applied), sortedLines(list())); diff != "" {
		t.Errorf("difference between the table from Apply (-) and the table from nft (+), want none:\n%.3000s", diff)
	}
	if text, err := RenderDirect(nil); text != "" || err != nil {
		t.Errorf("no frontends: Render = %q, %v; want \"\"", text, err)
	}
}

// sortedLines sorts a listing's lines, because the kernel lists elements in any order. It omits the
// rules that nft can't read.
func sortedLines(list string) []string {
	names := strings.NewReplacer("elements = {", "", "}", "", ",\n", "\n", "@nh,128,32", "ip daddr", "@nh,96,32", "ip saddr",
		"@th,104,8 & 0x12 == 0x2", "tcp flags syn / syn,ack", "tcp dport", "th dport", "tcp sport", "th sport") // nft prints these rules differently if they were written through netlink
	lines := strings.Split(names.Replace(list), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, ". @th") || strings.Contains(line, "fwd ip6 to") })
	slices.Sort(lines)
	return lines
}

// TestDirectUnreportedFailure closes the table's connection to the kernel, and applies a frontend
// that uses nat. Apply must succeed. Intact must report the failure.
func TestDirectUnreportedFailure(t *testing.T) {
	s := newSegment(t, 1)
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1)
	s.apply(f)
	if err := s.d.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	d, err := New(s.options())
	if err != nil {
		t.Fatal(err)
	}
	s.d = d
	nat := *f
	nat.Key.Port, nat.Forward = 81, balancer.NATForward
	if err := d.direct.Close(true); err != nil {
		t.Fatal(err)
	}
	if err := d.Apply(t.Context(), []dataplane.Change{{Key: nat.Key, New: &nat}}); err != nil {
		t.Errorf("nat frontend: Apply = %v, want no error", err)
	}
	if reason, err := d.Intact(context.Background()); err == nil {
		t.Errorf("Intact = %q, nil; want an error about the failure", reason)
	}
	_ = d.Close(t.Context(), true) // Close fails because direct is already closed
	s.start()
}
