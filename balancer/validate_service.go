package balancer

import (
	"net/netip"
	"slices"

	"vipd/balancer/decode"
)

// checkService reports all problems of a service.
func (r *tableReader) checkService(d *serviceTable) {
	if !isLabel(string(r.service)) {
		r.errorf("", "%q is not a valid service name: names are DNS labels, %s", r.service, labelRule)
	}
	if !r.checkSize(d) {
		return
	}
	r.checkVIPs(d.VIPs)
	r.checkPorts(d.Ports)
	r.checkEndpoints(&d.Service)
	r.checkDiscover(d.Discover)
	r.checkSettings(&d.Service)
	r.checkForward(&d.Service)
	r.checkProtocols(&d.Service)
	r.checkLocality(&d.Service)
	r.checkProbed(&d.Service)
	r.checkSource(&d.Service)
	r.checkSourceRanges(&d.Service)
	r.checkTrusted(&d.Service)
}

func (r *tableReader) checkVIPs(vips []vipEntry) {
	if len(vips) == 0 {
		r.errorf("vips", `needs at least one address, such as "10.96.0.10"`)
	}
	first := make(map[netip.Addr]int, len(vips))
	for i, v := range vips {
		if !v.addr.IsValid() {
			continue
		}
		path := element("vips", i, "")
		if why := NotUnicast(v.addr); why != "" {
			r.errorf(path, "%s is %s: a VIP must be the address of a single host", v.addr, why)
			continue
		}
		if v.addr.Is6() && v.addr.IsLinkLocalUnicast() {
			r.warnf(path, "%s is link-local: clients need an interface name (%[1]s%%eth0), and not every mode supports it. Use an address in fd00::/8", v.addr)
		}
		if j, again := first[v.addr]; again {
			r.errorf(path, "%s is a duplicate of vips[%d]", v.addr, j)
			continue
		}
		first[v.addr] = i
	}
}

// checkSourceRanges checks source_ranges, unless PROXY headers name the clients.
func (r *tableReader) checkSourceRanges(s *Service) {
	if r.sets("source_ranges") && !s.AcceptProxyProtocol { // the client that a header names may have the other family
		r.checkNetworks(s, "source_ranges", s.SourceRanges)
	}
}

// checkTrusted reports an error if the service accepts PROXY headers and trusted is missing. It
// warns about networks in trusted that have no effect.
func (r *tableReader) checkTrusted(s *Service) {
	switch {
	case r.isBroken("trusted"), r.isBroken("accept_proxy_protocol"):
	case s.AcceptProxyProtocol && len(s.Trusted) == 0:
		r.errorf("accept_proxy_protocol", `needs trusted, the networks whose headers vipd accepts, such as trusted = ["10.0.0.0/24"]`)
	case !r.sets("trusted"):
	case s.AcceptProxyProtocol:
		r.checkNetworks(s, "trusted", s.Trusted)
	default:
		r.warnf("trusted", "has no effect without accept_proxy_protocol = true")
	}
}

// checkNetworks reports networks in an address family without VIPs, and families with VIPs but
// without networks.
func (r *tableReader) checkNetworks(s *Service, field string, networks []netip.Prefix) {
	if len(networks) == 0 || len(s.VIPs) == 0 || len(s.Pools) > 0 || r.isBroken(field) || r.isBroken("vips") {
		return
	}
	for _, family := range []struct {
		name string
		is4  bool
	}{{"IPv4", true}, {"IPv6", false}} {
		inFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == family.is4 }
		at := slices.IndexFunc(networks, inFamily)
		served := slices.ContainsFunc(s.VIPs, func(vip netip.Addr) bool { return vip.Is4() == family.is4 })
		switch {
		case at >= 0 && !served:
			r.warnf(element(field, at, ""), "%s has no effect: the service has no %s VIP", networks[at], family.name)
		case at < 0 && served:
			r.warnf(field, "no %s client can connect, because no range is %[1]s: add a range, such as %s", family.name, everyAddress(family.is4))
		}
	}
}

// everyAddress returns the network that contains all addresses of a family.
func everyAddress(is4 bool) string {
	if is4 {
		return "0.0.0.0/0"
	}
	return "::/0"
}

// NotUnicast explains why addr is not a unicast address. It returns "" if addr is a unicast
// address.
func NotUnicast(addr netip.Addr) string {
	switch {
	case addr.IsUnspecified():
		return "the unspecified address"
	case addr.IsMulticast():
		return "a multicast address"
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}

func (r *tableReader) checkPorts(ports []Port) {
	if len(ports) == 0 {
		r.errorf("ports", "needs at least one table with a port, such as port = 80")
	}
	type portKey struct {
		port  PortRange
		proto Protocol
	}
	names := map[string]int{}
	open := map[portKey]int{}
	node := map[portKey]int{}
	for i := range ports {
		p := &ports[i]
		r.checkPortName(ports, i, names)
		if p.Port == 0 {
			r.errorf(element("ports", i, "port"), "needs a port, 1 to 65535")
		} else if j, again := open[portKey{p.Port, p.Protocol}]; again {
			r.errorf(element("ports", i, "port"), "port %s/%s is a duplicate of ports[%d]", p.Port, p.Protocol, j)
		} else {
			open[portKey{p.Port, p.Protocol}] = i
		}
		r.checkRange(ports, i)
		if p.NodePort == 0 {
			continue
		}
		if j, again := node[portKey{PortRange(p.NodePort), p.Protocol}]; again {
			r.errorf(element("ports", i, "node_port"), "node port %d/%s is a duplicate of ports[%d]", p.NodePort, p.Protocol, j)
		} else {
			node[portKey{PortRange(p.NodePort), p.Protocol}] = i
		}
	}
}

// checkRange checks port i and its target port, if either is a range.
func (r *tableReader) checkRange(ports []Port, i int) {
	p := &ports[i]
	if p.Port == 0 || r.isBroken(element("ports", i, "target_port")) {
		return
	}
	switch {
	case p.TargetPort.Len() == p.Port.Len():
	case p.Port.IsRange():
		r.errorf(element("ports", i, "target_port"), "%s must have as many ports as port, which has %d: leave it out to keep the client's port", p.TargetPort, p.Port.Len())
	default:
		r.errorf(element("ports", i, "target_port"), "%s is a range, but port %s is a single port", p.TargetPort, p.Port)
	}
	if !p.Port.IsRange() {
		return
	}
	if p.NodePort != 0 {
		r.errorf(element("ports", i, "node_port"), "a range of ports can't have a node port: leave it out")
	}
	for j := range i {
		if q := &ports[j]; q.Protocol == p.Protocol && q.Port != p.Port && q.Port.conflicts(p.Port) {
			r.errorf(element("ports", i, "port"), "%s/%s overlaps ports[%d]", p.Port, p.Protocol, j)
		}
	}
}

// checkPortName checks the name of port i. The map names contains the names of earlier ports.
func (r *tableReader) checkPortName(ports []Port, i int, names map[string]int) {
	name, path := ports[i].Name, element("ports", i, "name")
	switch j, again := names[name]; {
	case name == "" && len(ports) == 1:
	case name == "":
		r.errorf(path, "needs a name, because the service has several ports")
	case !isLabel(name):
		r.errorf(path, "%q is not a valid port name: port names are %s", name, labelRule)
	case again:
		r.errorf(path, "the name %q is already used by ports[%d]", name, j)
	default:
		names[name] = i
	}
}

// checkSettings checks the settings that don't depend on ports and endpoints. Only these settings
// can also come from [defaults].
func (r *tableReader) checkSettings(s *Service) {
	if minimum := minMSS(s); s.MSS != 0 && s.MSS < minimum {
		r.errorf("mss", "%d is out of range; use 0 (no clamp) or 536 to 65495 (from 1220 with IPv6 VIPs)", s.MSS)
	}
	if log := s.AccessLog; log != nil && *log != JournalLog && isRelative(*log) {
		r.errorf("access_log", `%q must be "journal", "" or the absolute path of a file: each host writes its own file`, *log)
	}
	if s.AcceptProxyProtocol && s.Forward != NATForward {
		r.errorf("accept_proxy_protocol", "can't be used with forward = %q, which forwards packets unchanged: remove one of the two", s.Forward)
	}
	if s.Source == ClientSource && s.SNAT == AlwaysSNAT {
		r.errorf("source", `"client" can't be used with snat = "always", which replaces the client's address: remove one of the two`)
	}
	if s.Forward != NATForward {
		if s.ProxyProtocol != NoProxyProtocol {
			r.errorf("proxy_protocol", "%s can't be used with forward = %q, which forwards packets unchanged: remove one of the two", s.ProxyProtocol, s.Forward)
		}
		if s.MSS > 0 {
			r.warnf("mss", "has no effect with forward = %q: endpoints answer clients themselves", s.Forward)
		}
		if s.SNAT == AlwaysSNAT {
			r.warnf("snat", "\"always\" has no effect with forward = %q, which does not change the client's address", s.Forward)
		}
	}
	r.checkAffinityPrefix(s.AffinityPrefix)
	r.checkLimits(s.Limits)
	for i, h := range s.Checks() {
		r.healthReader(i).checkHealth(h)
	}
}

// minMSS returns the minimum MSS: the packet size that every host must accept (576 bytes for IPv4,
// 1280 for IPv6) minus the headers.
func minMSS(s *Service) int {
	if slices.ContainsFunc(s.VIPs, netip.Addr.Is6) {
		return 1220
	}
	return 536
}

// checkForward reports target ports that differ from the VIP's port if the forwarding method does
// not translate ports.
func (r *tableReader) checkForward(s *Service) {
	if s.Forward == NATForward {
		return
	}
	const text = "%d differs from port %s: forward = %q forwards packets unchanged, so endpoints must listen on the VIP's port"
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.TargetPort != p.Port {
			r.errorf(element("ports", i, "target_port"), text, p.TargetPort.First(), p.Port, s.Forward)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		for j := range s.Ports {
			p := &s.Ports[j]
			if port, named := e.Ports[p.Name]; named && PortRange(port) != p.Port {
				r.errorf(decode.Join(element("endpoints", i, "ports"), p.Name), text, port, p.Port, s.Forward)
			} else if !named && e.Port != 0 && PortRange(e.Port) != p.Port {
				r.errorf(element("endpoints", i, "port"), text, e.Port, p.Port, s.Forward)
				break
			}
		}
	}
}

// checkProtocols reports settings that apply to no port of the service. Settings from [defaults]
// are ignored, because they are meant for other services.
func (r *tableReader) checkProtocols(s *Service) {
	for _, field := range []string{"affinity_timeout", "affinity_scope", "affinity_prefix"} {
		if r.sets(field) && s.Affinity == NoAffinity {
			r.warnf(field, `has no effect without affinity = "client_ip"`)
		}
	}
	if r.isBroken("ports") || len(s.Ports) == 0 {
		return
	}
	has := func(proto Protocol) bool {
		return slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == proto })
	}
	if r.sets("proxy_protocol") && s.ProxyProtocol != NoProxyProtocol && !has(TCP) && !(s.ProxyProtocol == ProxyProtocolV2 && has(UDP)) {
		r.errorf("proxy_protocol", "the header needs a TCP port, or with \"v2\" a TCP or UDP port: leave the setting out")
	}
	if r.sets("accept_proxy_protocol") && s.AcceptProxyProtocol && !has(TCP) {
		r.errorf("accept_proxy_protocol", "only TCP connections can carry the header, and the service has no TCP port: leave the setting out")
	}
	if r.sets("connect_timeout") && !has(TCP) {
		r.warnf("connect_timeout", "has no effect: the service has no TCP port")
	}
	if r.sets("max_connection_age") && s.MaxConnectionAge > 0 && !has(TCP) {
		r.warnf("max_connection_age", "has no effect: the service has no TCP port")
	}
	if r.sets("mss") && s.MSS > 0 && !has(TCP) {
		r.warnf("mss", "has no effect: the service has no TCP port")
	}
	if r.sets("drain_timeout") && !has(TCP) && !has(SCTP) {
		r.warnf("drain_timeout", "has no effect: UDP flows leave a removed endpoint at once")
	}
	if r.sets("idle_timeout") && !has(TCP) && !has(UDP) {
		r.warnf("idle_timeout", "has no effect: the service has neither a TCP nor a UDP port")
	}
}

// checkLocality reports a locality that no endpoint can match. A service without endpoints has no
// problem, because its registered endpoints are unknown.
func (r *tableReader) checkLocality(s *Service) {
	if len(s.Endpoints) == 0 || s.Discover != nil || r.isBroken("endpoints") {
		return
	}
	node := slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool { return e.Node != "" })
	zone := slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool { return e.Zone != "" })
	switch {
	case s.Locality == PreferNode && !node && !zone:
		r.warnf("locality", "prefer_node has no effect: no endpoint sets node")
	case s.Locality == PreferZone && !zone:
		r.warnf("locality", "prefer_zone has no effect: no endpoint sets zone")
	case s.Locality == NodeOnly && !node:
		r.warnf("locality", "node_only leaves no endpoint to use: no endpoint sets node")
	}
}
