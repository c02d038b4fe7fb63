package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// checkLoopbackRouting checks whether route_localnet lets other hosts reach 127.0.0.0/8.
func checkLoopbackRouting(_ context.Context, o *observed) []Finding {
	on := devicesWith(o, "ipv4", "route_localnet", "1")
	if len(on) == 0 {
		return []Finding{fine("127.0.0.0/8 is closed to other hosts (route_localnet)")}
	}
	return []Finding{warning("127.0.0.0/8 is open to other hosts: route_localnet is on for "+list(on),
		"every host on the link reaches programs that listen only on 127.0.0.1. vipd never enables route_localnet; kube-proxy or Docker might have enabled it",
		"sysctl -w "+deviceSysctl(on[0], "route_localnet")+"=0")}
}

// checkReversePath looks for devices that drop a packet if the route back to its source uses
// another device.
func checkReversePath(_ context.Context, o *observed) []Finding {
	// The kernel uses the larger of the device's value and the value of "all". 1 is strict, and 2
	// is loose.
	strict := devicesWith(o, "ipv4", "rp_filter", "1")
	if slices.Contains(devicesWith(o, "ipv4", "rp_filter", "2"), "all") {
		strict = nil
	}
	strict = slices.DeleteFunc(strict, func(d string) bool { return d == "lo" })
	if len(strict) == 0 {
		return []Finding{fine("no device filters packets by their return path (rp_filter)")}
	}
	return []Finding{note("rp_filter is strict on "+list(strict),
		"with asymmetric routes, it drops packets if the route back to the client uses another device",
		"sysctl -w "+deviceSysctl(strict[0], "rp_filter")+"=2")}
}

// checkARP checks that the host does not answer ARP for VIPs on lo or on vipd's own device.
func checkARP(_ context.Context, o *observed) (found []Finding) {
	held := slices.DeleteFunc(heldOn(o), func(d string) bool { return d != "lo" && !strings.HasPrefix(d, "vipd") })
	if len(held) == 0 || !o.Config.Addresses.StrictARP {
		return nil
	}
	for _, s := range []struct{ name, least string }{{"arp_ignore", "1"}, {"arp_announce", "2"}} {
		name := "net.ipv4.conf.all." + s.name
		if value := o.sysctl(name); value != "" && value < s.least {
			found = append(found, warning(fmt.Sprintf("%s is %s while VIPs are held here", name, value),
				"this host also answers ARP for VIPs that other hosts hold, so clients on its link might reach the wrong host",
				"sysctl -w "+name+"="+s.least))
		}
	}
	return orFine(found, "this host does not answer ARP for held VIPs (arp_ignore, arp_announce)")
}

// heldOn returns the devices to which the running vipd has added VIPs.
func heldOn(o *observed) (devices []string) {
	if o.Status == nil {
		return nil
	}
	for _, a := range o.Status.Addresses {
		if a.Held != "host" && a.Held != "none" && a.Held != "" && !slices.Contains(devices, a.Held) {
			devices = append(devices, a.Held)
		}
	}
	return devices
}

// checkAccounting checks whether the kernel counts connections' bytes.
func checkAccounting(_ context.Context, o *observed) []Finding {
	name := o.mode().Name
	if name != config.IPTablesMode && name != config.NFTablesMode || o.sysctl("net.netfilter.nf_conntrack_acct") != "0" {
		return nil
	}
	return []Finding{note("the kernel does not count bytes of connections (nf_conntrack_acct)",
		"vipd_service_bytes_total and the bytes of vipctl top and conns stay 0; connections are counted. Set it, and restart "+
			"vipd; it applies only to new connections",
		"sysctl -w net.netfilter.nf_conntrack_acct=1")}
}

// checkWindows checks whether connection tracking treats packets outside the TCP window as invalid.
func checkWindows(_ context.Context, o *observed) []Finding {
	if !o.mode().Forward || o.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal") != "0" {
		return nil
	}
	return []Finding{note("connection tracking is strict about TCP windows (nf_conntrack_tcp_be_liberal)",
		"packets that tracking considers invalid are not translated; if packets are often late or lost, an endpoint's untranslated answer can reset the connection",
		"sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1")}
}

// checkLoose checks whether connection tracking accepts TCP connections whose first packets went
// through another host.
func checkLoose(_ context.Context, o *observed) []Finding {
	if !o.mode().Forward || o.sysctl("net.netfilter.nf_conntrack_tcp_loose") != "0" {
		return nil
	}
	f := note("connection tracking ignores connections that started elsewhere (nf_conntrack_tcp_loose)",
		"if a VIP moves to this host, its open connections break", "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1")
	if o.Config.Ownership.Enabled {
		f.Level = Warning
	}
	return []Finding{f}
}
