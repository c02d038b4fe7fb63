package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/config"
)

// checkSysctls reads the settings of the kernel that decide over traffic to VIPs.
func checkSysctls(_ context.Context, v *visit) {
	for _, check := range []func(*visit){
		checkForwarding, checkVirtualServers, checkLoopbackRouting, checkReversePath, checkARP, checkAccounting, checkBridges,
	} {
		check(v)
	}
}

// checkForwarding is about packets that this host passes on: the kernel modes' whole traffic from other hosts.
func checkForwarding(v *visit) {
	if !v.mode().Forward {
		return
	}
	const four, six = "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"
	off := slices.DeleteFunc(v.per("ipv4", "forwarding", "0"), func(d string) bool { return d == "all" || d == "lo" })
	switch {
	case v.sysctl(four) != "0" && len(off) > 0:
		v.add(warning("IPv4 packets that come in by "+list(off)+" are not forwarded", "clients there reach no endpoint through this host",
			"sysctl -w "+sysctlOf(off[0], "forwarding")+"=1"))
	case v.sysctl(four) != "0":
		v.add(fine("IPv4 packets are forwarded"))
	case v.Config.Host.ManageSysctls && v.Status == nil:
		v.add(fine("IPv4 packets are not forwarded yet; vipd sets that when it starts"))
	default:
		v.add(problem("IPv4 packets are not forwarded", "clients on other hosts reach no endpoint through this one", "sysctl -w "+four+"=1"))
	}
	switch value, forced := v.sysctl(six), slices.DeleteFunc(v.per("ipv6", "force_forwarding", "1"), func(d string) bool { return d == "lo" }); {
	case value == "0" && len(forced) > 0:
		v.add(fine("IPv6 packets that come in by " + list(forced) + " are forwarded"))
	case value == "0" && v.has(false):
		v.add(warning("IPv6 packets are not forwarded",
			"clients on other hosts reach no endpoint through IPv6 VIPs. vipd leaves this to you: with it, the host no longer takes "+
				"its own routes from router advertisements, unless accept_ra is 2",
			"sysctl -w "+six+"=1"))
	case value == "1":
		v.add(fine("IPv6 packets are forwarded"))
	}
}

// per lists the devices, "all" among them, for which a sysctl of the family's conf has the value.
func (v *visit) per(family, name, value string) []string {
	devices := []string{"all"}
	if interfaces, err := v.Interfaces(); err == nil {
		for _, i := range interfaces {
			devices = append(devices, i.Name)
		}
	}
	return slices.DeleteFunc(devices, func(d string) bool {
		// A device's name may have dots, which are no separators.
		return v.text("/proc/sys/net/"+family+"/conf/"+d+"/"+name) != value
	})
}

func checkLoopbackRouting(v *visit) {
	on := v.per("ipv4", "route_localnet", "1")
	if len(on) == 0 {
		v.add(fine("127.0.0.0/8 is closed to other hosts (route_localnet)"))
		return
	}
	v.add(warning("127.0.0.0/8 is open to other hosts: route_localnet is on for "+list(on),
		"every host on the link reaches programs that listen on 127.0.0.1 alone. vipd never turns it on; kube-proxy and Docker may have",
		"sysctl -w "+sysctlOf(on[0], "route_localnet")+"=0"))
}

func sysctlOf(device, name string) string {
	if strings.Contains(device, ".") {
		return "net/ipv4/conf/" + device + "/" + name
	}
	return "net.ipv4.conf." + device + "." + name
}

func checkReversePath(v *visit) {
	// The kernel takes the larger of the device's value and that of "all"; 1 is strict, 2 loose.
	strict := v.per("ipv4", "rp_filter", "1")
	if slices.Contains(v.per("ipv4", "rp_filter", "2"), "all") {
		strict = nil
	}
	strict = slices.DeleteFunc(strict, func(d string) bool { return d == "lo" })
	if len(strict) == 0 {
		v.add(fine("no device filters by the way back (rp_filter)"))
		return
	}
	v.add(note("rp_filter is strict on "+list(strict),
		"packets of a client that come in by one device while the route back to it leads out of another are dropped; "+
			"it matters only where routes are asymmetric",
		"sysctl -w "+sysctlOf(strict[0], "rp_filter")+"=2"))
}

// checkARP is about VIPs on lo or on vipd's own device, for which the host must not answer ARP.
func checkARP(v *visit) {
	before := len(v.found)
	held := slices.DeleteFunc(v.held(), func(d string) bool { return d != "lo" && !strings.HasPrefix(d, "vipd") })
	if len(held) == 0 || !v.Config.Addresses.StrictARP {
		return
	}
	for _, s := range []struct{ name, least string }{{"arp_ignore", "1"}, {"arp_announce", "2"}} {
		name := "net.ipv4.conf.all." + s.name
		if value := v.sysctl(name); value != "" && value < s.least {
			v.add(warning(fmt.Sprintf("%s is %s while VIPs are held here", name, value),
				"this host answers ARP for VIPs that other hosts hold as well, so that clients on its link may come to the wrong one",
				"sysctl -w "+name+"="+s.least))
		}
	}
	if len(v.found) == before {
		v.add(fine("held VIPs are kept out of ARP (arp_ignore, arp_announce)"))
	}
}

// held lists the devices on which the running vipd holds VIPs.
func (v *visit) held() []string {
	var devices []string
	if v.Status == nil {
		return nil
	}
	for _, a := range v.Status.Addresses {
		if a.Held != "host" && a.Held != "none" && a.Held != "" && !slices.Contains(devices, a.Held) {
			devices = append(devices, a.Held)
		}
	}
	return devices
}

// checkAccounting is about what the kernel counts, and about packets that it takes for invalid.
func checkAccounting(v *visit) {
	if !v.mode().Forward || v.sysctl("net.netfilter.nf_conntrack_max") == "" {
		return
	}
	if name := v.mode().Name; v.sysctl("net.netfilter.nf_conntrack_acct") == "0" && (name == config.IPTablesMode || name == config.NFTablesMode) {
		v.add(note("the kernel does not count bytes of connections (nf_conntrack_acct)",
			"vipd_service_bytes_total and the bytes of vipctl top and conns stay 0; connections are counted. Set this and restart vipd: "+
				"it holds for new connections",
			"sysctl -w net.netfilter.nf_conntrack_acct=1"))
	}
	if v.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal") == "0" {
		v.add(note("connection tracking is strict about TCP windows (nf_conntrack_tcp_be_liberal)",
			"a packet that it takes for invalid is not translated; where packets are often late or lost, such an answer of an "+
				"endpoint can reset its connection",
			"sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1"))
	}
}

// checkBridges is about clients and endpoints behind one bridge of this host, such as containers.
func checkBridges(v *visit) {
	interfaces, err := v.Interfaces()
	if err != nil || !v.mode().Forward {
		return
	}
	if v.sysctl("net.bridge.bridge-nf-call-iptables") == "1" {
		if v.translates() { // virtual servers take packets on this host, not inside of the bridge
			checkHairpin(v, interfaces)
		}
		return
	}
	var bridges []string
	for _, i := range interfaces {
		if i.Bridge && len(i.Addrs) > 0 {
			bridges = append(bridges, i.Name)
		}
	}
	if len(bridges) == 0 {
		return
	}
	v.add(note("packets inside of bridges bypass iptables: "+list(bridges),
		fmt.Sprintf("an endpoint behind the same bridge as its client answers it directly, past this host, where snat is %q; auto "+
			"replaces the client's address there", balancer.NeverSNAT),
		"modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1"))
}

// checkHairpin is about endpoints behind a bridge inside of which packets are translated: what one of them sends to its own VIP has to
// leave by the port by which it came.
func checkHairpin(v *visit, interfaces []Interface) {
	for _, i := range interfaces {
		behind := func(to netip.AddrPort) bool {
			return slices.ContainsFunc(i.Networks, func(n netip.Prefix) bool { return n.Contains(to.Addr()) })
		}
		if len(i.OneWay) == 0 || !slices.ContainsFunc(v.Frontends, func(f Frontend) bool { return slices.ContainsFunc(f.Backends, behind) }) {
			continue
		}
		v.add(note("ports of bridges send nothing back by the way it came (hairpin): "+i.Name+" ("+list(i.OneWay)+")",
			"an endpoint there that connects to its own VIP gets no answer when it is given itself, because packets inside of the bridge are "+
				"translated (bridge-nf-call-iptables)",
			"bridge link set dev "+i.OneWay[0]+" hairpin on"))
	}
}
