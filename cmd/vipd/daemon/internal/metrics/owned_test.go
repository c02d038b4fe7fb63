package metrics

import (
	"bytes"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"vipd/cmd/internal/api"
)

// TestMetricsOfOwnedVIPs scrapes a node with an owner. All documented metrics must exist with their
// labels, and promtool must accept them.
func TestMetricsOfOwnedVIPs(t *testing.T) {
	vip := netip.MustParseAddr("192.168.1.100")
	s := &api.OwnerStatus{
		Gate: "open", Bound: []netip.Addr{vip}, Unowned: []netip.Addr{vip.Next()}, Rivals: []api.OwnerRival{{VIP: vip, Count: 2}},
		Peers: []api.OwnerPeer{{Node: "gw2", Network: "192.168.1.0/24", Up: true}, {Node: "gw2", Network: "10.0.0.1"}},
		Took:  map[string]int{"silent": 1}, Gave: map[string]int{"move": 1}, GateClosed: map[string]int{"not confirmed": 1},
	}
	s.ConfirmedFor.Observe(0.42)
	s.TakenAfter.Observe(0.81)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(func(tell teller) { tellOwned(tell, s) }))
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, metric := range all {
		if _, err := expfmt.MetricFamilyToText(&text, metric); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		`vipd_vip_owner{vip="192.168.1.100"} 1`, `vipd_vip_unowned{vip="192.168.1.101"} 1`, `vipd_ownership_gate_open 1`,
		`vipd_ownership_gate_closed_total{reason="not confirmed"} 1`, `vipd_ownership_confirmed_seconds_bucket{le="0.45"} 1`,
		`vipd_ownership_confirmed_seconds_bucket{le="0.4"} 0`, `vipd_ownership_confirmed_seconds_sum 0.42`,
		`vipd_ownership_peer_up{network="192.168.1.0/24",peer="gw2"} 1`, `vipd_ownership_peer_up{network="10.0.0.1",peer="gw2"} 0`,
		`vipd_ownership_takeovers_total{reason="silent"} 1`, `vipd_ownership_moves_total{reason="move"} 1`,
		`vipd_ownership_takeover_seconds_count 1`, `vipd_ownership_rivals_total{vip="192.168.1.100"} 2`,
		`vipd_ownership_announcements_total 0`, `vipd_ownership_late_seconds_max 0`,
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("metric is missing: %s", want)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool: Debian's package prometheus")
	}
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = &text
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, output)
	}
}
