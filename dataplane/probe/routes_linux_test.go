package probe_test

import (
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// unrouted drops packets for dst.
func unrouted(dst string) error {
	_, to, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: to, Type: unix.RTN_BLACKHOLE})
}

// prohibited rejects packets for dst as administratively prohibited.
func prohibited(dst string) error {
	_, to, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: to, Type: unix.RTN_PROHIBIT})
}

// markedRoute gives packets with mark 77 a route to 10.8.0.1 that rejects them in a distinct way.
func markedRoute() error {
	rule := netlink.NewRule()
	rule.Mark, rule.Table, rule.Family = 77, 77, unix.AF_INET
	if err := netlink.RuleAdd(rule); err != nil {
		return err
	}
	_, to, _ := net.ParseCIDR("10.8.0.1/32")
	return netlink.RouteAdd(&netlink.Route{Dst: to, Type: unix.RTN_PROHIBIT, Table: 77})
}
