package owner

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"vipd/cmd/internal/api"
	onhost "vipd/dataplane/failover"
)

// TestLastingBindError makes a host own a VIP again after each pause, but adding the VIP always
// fails. Each pause must be twice as long as the previous pause, up to an hour. A success must
// reset the pause.
func TestLastingBindError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x absent
		failed := map[netip.Addr]error{vip: errors.New("no space")}
		for _, minutes := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			if x.bound([]netip.Addr{vip}, failed) == nil {
				t.Error("after a new attempt: bound() = nil, want the error")
			}
			time.Sleep(time.Second)
			if x.bound(x.again(), failed) != nil {
				t.Error("after a repeated attempt: bound() = the same error, want nil")
			}
			x.unbound([]netip.Addr{vip})
			time.Sleep(minutes*time.Minute - time.Second)
			if len(x.reasons()) == 0 {
				t.Errorf("within %d minutes: reasons() = none, want a reason for the VIP", minutes)
			}
			time.Sleep(time.Second)
			if why := x.reasons(); len(why) > 0 {
				t.Errorf("reasons() = %v after %d minutes, want none", why, minutes)
			}
		}
		_ = x.bound([]netip.Addr{vip}, nil)
		_ = x.bound([]netip.Addr{vip}, failed)
		x.unbound([]netip.Addr{vip})
		time.Sleep(time.Minute)
		if why := x.reasons(); len(why) > 0 {
			t.Errorf("reasons() = %v after a success and a new failure, want a pause of a minute", why)
		}
	})
}

// TestUnplacedVIP configures a VIP that is outside the networks of all interfaces. The host must
// not be healthy for the VIP's group, so the group does not return to this host after each failed
// attempt.
func TestUnplacedVIP(t *testing.T) {
	d := &byVRRP{report: &api.OwnerReport{}, layout: onhost.Layout{Places: onhost.Places{Devices: map[netip.Addr]string{vip: "lan"}}}}
	if why := d.lacks([]netip.Addr{vip}); why != "" {
		t.Errorf("lacks() = %q for a VIP on lan, want \"\"", why)
	}
	const want = "10.9.7.1: it is not in the network of any interface: add an address from the same network to an interface"
	if why := d.lacks([]netip.Addr{vip, netip.MustParseAddr("10.9.7.1")}); why != want {
		t.Errorf("lacks() = %q, want %q", why, want)
	}
}
