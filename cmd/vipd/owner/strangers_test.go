package owner

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
	onhost "vipd/dataplane/failover"
)

// TestStrangersWithOtherRouterID receives adverts with a router ID that no group has. If an advert
// lists a group's VIP, a problem must exist, and an event must be recorded at most once a minute.
// For all other adverts, only the router ID must be recorded.
func TestStrangersWithOtherRouterID(t *testing.T) {
	host, to, shared := netip.MustParseAddr("10.9.0.12"), netip.MustParseAddr("224.0.0.18"), netip.MustParseAddr("10.9.0.100")
	groups := []vrrp.Group{{Name: "main", RouterID: 51, VIPs: []netip.Addr{shared}}}
	advert := func(id uint8, vip netip.Addr, ttl int) *onhost.Advert {
		a := vrrp.Advert{Version: 3, RouterID: id, Priority: 100, Interval: time.Second, Addrs: []netip.Addr{vip}}
		return &onhost.Advert{From: host, To: to, TTL: ttl, Data: a.Append(nil, host, to, vrrp.Plain)}
	}
	var x strangers
	notes, start := 0, local.Time(time.Hour)
	for i := range 90 {
		now := start.Add(time.Duration(i) * time.Second)
		for _, a := range []*onhost.Advert{
			advert(52, shared, 255), advert(60, shared.Next(), 255), advert(51, shared, 255), advert(61, shared, 64), {From: host, To: to, TTL: 255, Data: []byte{0x31}},
		} {
			notes += len(x.receive(now, a, groups))
		}
	}
	end := start.Add(90 * time.Second)
	problems, ids := x.list(end, groups)
	const want = "10.9.0.12 sends adverts for 10.9.0.100 with router_id 52, but main has 51 here: both hosts own the VIP, so set the same router_id on both"
	if got := strings.Join(problems, "; "); got != want || notes != 2 {
		t.Errorf("list() = %q, notes = %d; want %q and 2 notes", got, notes, want)
	}
	if !slices.Equal(ids, []int{52, 60}) {
		t.Errorf("router IDs = %v, want 52 and 60", ids)
	}
	if problems, ids := x.list(end.Add(strangerKept), groups); len(problems)+len(ids) > 0 {
		t.Errorf("after a minute of silence: list() = %v, %v, want none", problems, ids)
	}
	for i := range 100 {
		a := advert(52, shared, 255)
		a.From = netip.MustParseAddr(fmt.Sprintf("10.9.1.%d", i))
		a.Data = (&vrrp.Advert{Version: 3, RouterID: 52, Priority: 100, Interval: time.Second, Addrs: []netip.Addr{shared}}).Append(nil, a.From, to, vrrp.Plain)
		x.receive(end, a, groups)
	}
	if len(x.of) > maxStrangers {
		t.Errorf("strangers kept = %d, want at most %d", len(x.of), maxStrangers)
	}
}
