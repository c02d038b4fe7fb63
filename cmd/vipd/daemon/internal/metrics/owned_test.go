package metrics

import (
	"bytes"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
)

// TestMetricsOfOwnedVIPs scrapes a node on which vipd owner runs. All documented metrics must exist
// with their labels, and promtool must accept them.
func TestMetricsOfOwnedVIPs(t *testing.T) {
	const router = "192.168.1.12"
	group := vrrp.GroupStatus{
		Name: "main", State: vrrp.Active, Priority: 150, Routers: []vrrp.RouterStatus{{Addr: netip.MustParseAddr(router), Received: 7, Named: true, Age: 200 * time.Millisecond}},
		Counters: vrrp.Counters{
			Sent: 9, Dropped: map[vrrp.Reason]uint64{vrrp.WrongChecksum: 3}, Late: 3 * time.Millisecond,
			Changes: []vrrp.ChangeCount{{To: vrrp.Active, Why: "silence", Count: 2}},
		},
	}
	vip := netip.MustParseAddr("192.168.1.100")
	s := &api.OwnerStatus{
		Gate: "open", Bound: []netip.Addr{vip}, Unowned: []netip.Addr{vip.Next()}, Rivals: []api.OwnerRival{{VIP: vip, Count: 2}},
		Peers: []api.OwnerPeer{{Node: "gw2", Network: "192.168.1.0/24", Up: true}, {Node: "gw2", Network: "10.0.0.1"}},
		Took:  map[string]int{"silent": 1}, Gave: map[string]int{"move": 1}, GateClosed: map[string]int{"not confirmed": 1},
	}
	s.ConfirmedFor.Observe(0.42)
	s.TakenAfter.Observe(0.81)
	registry := prometheus.NewRegistry()
	s.VRRP = &vrrp.Status{Groups: []vrrp.GroupStatus{group}}
	m := &Metrics{Options: Options{Owner: func() *api.OwnerStatus { return s }}}
	registry.MustRegister(collector(m.collectOwned))
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
		`vipd_vrrp_state{group="main",state="Active"} 1`, `vipd_vrrp_state{group="main",state="Backup"} 0`, `vipd_vrrp_priority{group="main"} 150`,
		`vipd_vrrp_adverts_sent_total{group="main"} 9`, `vipd_vrrp_adverts_received_total{group="main",router="192.168.1.12"} 7`,
		`vipd_vrrp_adverts_dropped_total{group="main",reason="checksum"} 3`, `vipd_vrrp_advert_age_seconds{group="main",router="192.168.1.12"} 0.2`,
		`vipd_vrrp_changes_total{group="main",reason="silence",to="Active"} 2`, `vipd_vrrp_late_seconds_max{group="main"} 0.003`,
		`vipd_ownership_announcements_total 0`, `vipd_ownership_late_seconds_max 0`,
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("series %s is missing", want)
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
		t.Errorf("promtool: error = %v, want none\n%s", err, output)
	}
}
