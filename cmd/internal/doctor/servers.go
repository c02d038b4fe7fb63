package doctor

import (
	"context"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane/ipvs"
)

// ipvsTable is the file that lists the kernel's virtual servers. It exists once ip_vs is loaded.
const ipvsTable = "/proc/thread-self/net/ip_vs"

// server is an IPVS virtual server in the kernel.
type server struct {
	key balancer.Key
	// mark is the firewall mark by which the server matches packets. If it is set, key is zero.
	mark string
}

// String returns the server's mark or its address, port and protocol, for messages.
func (s server) String() string {
	if s.mark != "" {
		return "mark " + s.mark
	}
	return s.key.String()
}

// servers reads the kernel's virtual servers.
func (s System) servers() []server {
	var all []server
	for line := range strings.Lines(s.text(ipvsTable)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		proto := balancer.Protocol(strings.ToLower(f[0]))
		switch proto {
		case balancer.TCP, balancer.UDP, balancer.SCTP:
			if at, ok := hexAddrPort(f[1]); ok {
				all = append(all, server{key: balancer.Key{Addr: at.Addr(), Port: balancer.PortRange(at.Port()), Proto: proto}})
			}
		case "fwm":
			if mark, err := strconv.ParseUint(f[1], 16, 32); err == nil {
				all = append(all, server{mark: strconv.FormatUint(mark, 10)})
			}
		}
	}
	return all
}

// hexAddrPort parses an address and a hexadecimal port in the format of ipvsTable: 0A600A00:0050 in
// network byte order, or [2001:0db8:...]:0050.
func hexAddrPort(text string) (netip.AddrPort, bool) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return netip.AddrPort{}, false
	}
	port, err := strconv.ParseUint(text[at+1:], 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	if six, ok := strings.CutPrefix(text[:at], "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(six, "]"))
		return netip.AddrPortFrom(a, uint16(port)), err == nil
	}
	four, err := hex.DecodeString(text[:at])
	a, ok := netip.AddrFromSlice(four)
	return netip.AddrPortFrom(a, uint16(port)), err == nil && ok
}

// foreignServers returns the virtual servers that are not in vipd's ledger.
func foreignServers(o *observed) ([]server, error) {
	all := o.servers()
	if len(all) == 0 {
		return nil, nil
	}
	owned, err := o.Recorded()
	ours := map[server]bool{}
	for _, key := range owned {
		if key.Port.IsRange() {
			ours[server{mark: strconv.FormatUint(uint64(ipvs.Mark(key)), 10)}] = true
		} else {
			ours[server{key: key}] = true
		}
	}
	return slices.DeleteFunc(all, func(s server) bool { return ours[s] }), err
}

// checkForeignServers lists other programs' virtual servers, which vipd never changes. It is a
// problem if one of them has a service's address and port.
func checkForeignServers(_ context.Context, o *observed) (found []Finding) {
	foreign, err := foreignServers(o)
	if err != nil {
		return []Finding{warning("vipd's ledger of virtual servers can't be read: "+oneLine(err), "so it is unknown which virtual servers belong to vipd", "sudo vipctl doctor")}
	}
	if len(foreign) == 0 {
		return nil
	}
	wanted := map[balancer.Key]bool{}
	for _, f := range o.Frontends {
		wanted[f.Key] = true
	}
	var inTheWay, otherPort, other []string
	for _, s := range foreign {
		switch {
		case wanted[s.key]:
			inTheWay = append(inTheWay, s.String())
		case s.mark == "" && o.vips[s.key.Addr]:
			otherPort = append(otherPort, s.String())
		default:
			other = append(other, s.String())
		}
	}
	show := "cat /proc/net/ip_vs"
	if o.has("ipvsadm") {
		show = "ipvsadm -Ln"
	}
	if len(inTheWay) > 0 {
		found = append(found, problem("other programs' virtual servers use services' addresses and ports: "+list(inTheWay),
			"the kernel can have only one virtual server for an address and port. "+
				"Remove it with the program that created it, or give the service another VIP or port",
			show))
	}
	if len(otherPort) > 0 {
		found = append(found, note("other programs' virtual servers are on services' VIPs, on other ports: "+list(otherPort),
			"vipd does not change them", show))
	}
	if len(other) > 0 {
		found = append(found, note("other programs have virtual servers: "+list(other), "vipd does not change them", show))
	}
	return found
}

// checkServerPrograms looks for other programs that manage virtual servers.
func checkServerPrograms(_ context.Context, o *observed) (found []Finding) {
	for _, p := range []struct{ name, why string }{
		{"keepalived", "vipd does not change keepalived's virtual servers. With lvs_flush, keepalived removes vipd's when it starts or stops; " +
			"vipd restores them within about a second"},
		{"ldirectord", "vipd does not change ldirectord's virtual servers; do not use the same address and port in both configurations"},
	} {
		if o.runs(p.name) {
			found = append(found, note(p.name+" is running", p.why, ""))
		}
	}
	if slices.ContainsFunc(o.interfaces, func(i Interface) bool { return i.Name == "kube-ipvs0" }) {
		f := note("kube-proxy runs or ran here in ipvs mode (kube-ipvs0)",
			"it deletes unknown virtual servers, except in the networks of ipvs-exclude-cidrs: add the VIPs' networks",
			"kube-proxy --ipvs-exclude-cidrs="+vipNetwork(o)+"  # with its other flags, or ipvs.excludeCIDRs in its configuration")
		if o.mode().Name == config.IPVSMode {
			f.Level = Warning
		}
		found = append(found, f)
	}
	return found
}

// vipNetwork returns a network that contains the first VIP, or an example network if there is no
// VIP.
func vipNetwork(o *observed) string {
	for _, f := range o.Frontends {
		if !f.NodePort {
			if p, err := f.Addr.Prefix(f.Addr.BitLen() / 4 * 3); err == nil {
				return p.String()
			}
		}
	}
	return "10.96.0.0/16"
}
