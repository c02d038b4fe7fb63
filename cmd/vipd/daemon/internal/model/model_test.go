package model

import (
	"fmt"
	"net/netip"
	"testing"

	"vipd/balancer/snap"
)

func TestNodePortAddresses(t *testing.T) {
	a, b, c := netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("192.168.1.100"), netip.MustParseAddr("fd00::1")
	for _, x := range []struct{ own, vips, want []netip.Addr }{
		{own: []netip.Addr{a, b, c}, want: []netip.Addr{a, b, c}},
		{own: []netip.Addr{a, b, c}, vips: []netip.Addr{b}, want: []netip.Addr{a, c}},
		{own: []netip.Addr{a, b, c}, vips: []netip.Addr{c}, want: []netip.Addr{a, b, c}}, // the only one of its family
		{own: []netip.Addr{a, b}, vips: []netip.Addr{a, b}, want: []netip.Addr{a, b}},
		{},
	} {
		var vips snap.Map[netip.Addr, int]
		for _, v := range x.vips {
			vips = vips.Set(v, 1)
		}
		if got := nodePortAddresses(x.own, vips); fmt.Sprint(got) != fmt.Sprint(x.want) {
			t.Errorf("own %v, VIPs %v: got %v, want %v", x.own, x.vips, got, x.want)
		}
	}
}
