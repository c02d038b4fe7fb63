package doctor

import (
	"context"
	"slices"
	"strings"
)

// checkForwarding checks whether this host forwards IPv4 packets. Modes that forward packets need
// forwarding for traffic from other hosts.
func checkForwarding(_ context.Context, o *observed) []Finding {
	if !o.mode().Forward {
		return nil
	}
	const name = "net.ipv4.ip_forward"
	off := slices.DeleteFunc(devicesWith(o, "ipv4", "forwarding", "0"), func(d string) bool { return d == "all" || d == "lo" })
	switch {
	case o.sysctl(name) != "0" && len(off) > 0:
		return []Finding{warning("IPv4 packets that arrive on "+list(off)+" are not forwarded", "clients there can't reach endpoints through this host",
			"sysctl -w "+deviceSysctl(off[0], "forwarding")+"=1")}
	case o.sysctl(name) != "0":
		return []Finding{fine("IPv4 packets are forwarded")}
	case o.Config.Host.ManageSysctls && o.Status == nil:
		return []Finding{fine("IPv4 packets are not forwarded yet; vipd will enable forwarding when it starts")}
	}
	return []Finding{problem("IPv4 packets are not forwarded", "clients on other hosts can't reach endpoints through this host", "sysctl -w "+name+"=1")}
}

// checkForwarding6 checks whether this host forwards IPv6 packets.
func checkForwarding6(_ context.Context, o *observed) []Finding {
	if !o.mode().Forward {
		return nil
	}
	const name = "net.ipv6.conf.all.forwarding"
	forced := slices.DeleteFunc(devicesWith(o, "ipv6", "force_forwarding", "1"), func(d string) bool { return d == "lo" })
	switch value := o.sysctl(name); {
	case value == "0" && len(forced) > 0:
		return []Finding{fine("IPv6 packets that arrive on " + list(forced) + " are forwarded")}
	case value == "0" && o.hasFamily(false):
		return []Finding{warning("IPv6 packets are not forwarded",
			"clients on other hosts can't reach endpoints through IPv6 VIPs. vipd does not enable it, because the host would then "+
				"ignore routes from router advertisements, unless accept_ra is 2",
			"sysctl -w "+name+"=1")}
	case value == "1":
		return []Finding{fine("IPv6 packets are forwarded")}
	}
	return nil
}

// devicesWith lists the devices whose sysctl net.FAMILY.conf.DEVICE.NAME has the value. "all"
// counts as a device.
func devicesWith(o *observed, family, name, value string) []string {
	devices := []string{"all"}
	for _, i := range o.interfaces {
		devices = append(devices, i.Name)
	}
	return slices.DeleteFunc(devices, func(d string) bool {
		// A device's name may contain dots, so the method sysctl, which treats dots as separators,
		// can't be used.
		return o.text("/proc/sys/net/"+family+"/conf/"+d+"/"+name) != value
	})
}

// deviceSysctl returns the name of a device's IPv4 sysctl in the form that the sysctl command
// accepts.
func deviceSysctl(device, name string) string {
	if strings.Contains(device, ".") {
		return "net/ipv4/conf/" + device + "/" + name
	}
	return "net.ipv4.conf." + device + "." + name
}
