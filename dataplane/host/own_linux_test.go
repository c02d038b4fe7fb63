package host

import (
	"fmt"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// TestOwnAddressesWithOwner makes vipd owner manage a VIP and one of the host's own addresses. Only
// the address without a network prefix may count as a VIP.
func TestOwnAddressesWithOwner(t *testing.T) {
	l, _ := network(t)
	l.Host().AddAddr("client", "10.1.0.100/32")
	h := newHost(t, options(t, xtables.NFT))
	d := desired(frontend("10.1.0.1:80"), frontend("10.1.0.100:80"))
	for a := range d.Addresses.Keys() {
		d.VIPStates = d.VIPStates.Set(a, balancer.Owned)
	}
	must(t, h.Prepare(t.Context(), d))
	must(t, h.Finish(t.Context(), d.Frontends))
	own, networked, err := h.LocalAddresses(nil)
	must(t, err)
	if got, want := fmt.Sprint(own, networked), "[10.1.0.1 fd01::1] [10.1.0.1 fd01::1]"; got != want {
		t.Errorf("own addresses = %s, want %s", got, want)
	}
	finishNothing(t, h)
	must(t, h.Release(t.Context()))
}
