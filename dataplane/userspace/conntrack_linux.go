package userspace

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// forgetFlows drops what conntrack knows of UDP flows to the keys: it decides only once per flow where that goes, so
// that a client that goes on sending would never meet a rule that is new, and go on meeting one that is not there any
// more. All entries are listed and compared here: the kernel's own filter is wrong for IPv6 addresses on some versions.
func forgetFlows(family xtables.Family, keys map[balancer.Key]bool) error {
	if len(keys) == 0 {
		return nil
	}
	inet := netlink.InetFamily(unix.AF_INET)
	if family == xtables.IPv6 {
		inet = unix.AF_INET6
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, inet, flowsTo(keys)); err != nil {
		return fmt.Errorf("dropping conntrack's UDP flows to redirected addresses: %w", err)
	}
	return nil
}

// flowsTo matches conntrack's entries by their original destination.
type flowsTo map[balancer.Key]bool

// MatchConntrackFlow reports whether an entry is of one of the keys.
func (keys flowsTo) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	a, ok := addrOf(flow.Forward.DstIP)
	return ok && keys[balancer.Key{Addr: a, Port: flow.Forward.DstPort, Proto: balancer.UDP}]
}
