package dataplanetest

import (
	"net/netip"
	"time"

	"vipd/balancer"
)

// newService returns a service on vipPort, for TCP and UDP, with vipd's default settings.
func newService(name balancer.Name, vip addrs, endpoints ...balancer.Endpoint) *balancer.Service {
	return &balancer.Service{
		Name: name,
		VIPs: vip[:],
		Ports: []balancer.Port{
			{Name: "tcp", Port: vipPort, Protocol: balancer.TCP, TargetPort: targetPort},
			{Name: "udp", Port: vipPort, Protocol: balancer.UDP, TargetPort: targetPort},
		},
		Endpoints:       endpoints,
		Policy:          balancer.Policy{Scheduler: balancer.WeightedRoundRobin, SNAT: balancer.AutoSNAT, Forward: balancer.NATForward, NoEndpoints: balancer.RejectClients, DrainTimeout: 30 * time.Second, ConnectTimeout: 10 * time.Second, ProxyProtocol: balancer.NoProxyProtocol},
		Affinity:        balancer.NoAffinity,
		AffinityTimeout: 3 * time.Hour,
		Locality:        balancer.AnyLocality,
	}
}

// edited returns a copy of s that edit has changed, because a published service must not be
// changed.
func edited(s *balancer.Service, edit func(*balancer.Service)) *balancer.Service {
	c := *s
	c.Ports = append([]balancer.Port(nil), s.Ports...)
	c.Endpoints = append([]balancer.Endpoint(nil), s.Endpoints...)
	edit(&c)
	return &c
}

// endpoints returns the servers' IPv4 and IPv6 addresses as endpoints with weight 1.
func endpoints(servers ...*server) []balancer.Endpoint {
	var all []balancer.Endpoint
	for _, s := range servers {
		for _, a := range s.addr {
			all = append(all, balancer.Endpoint{Address: a, Weight: 1})
		}
	}
	return all
}

func weightedEndpoints(servers []*server, weights []int) []balancer.Endpoint {
	all := endpoints(servers...)
	for i := range all {
		all[i].Weight = weights[i/2]
	}
	return all
}

func keyOf(a netip.Addr, port uint16, proto balancer.Protocol) balancer.Key {
	return balancer.Key{Addr: a, Port: balancer.PortRange(port), Proto: proto}
}

// keysOf returns the keys of a service's IPv4 and IPv6 VIPs, for each protocol.
func keysOf(vip addrs, protos ...balancer.Protocol) (keys []balancer.Key) {
	for _, proto := range protos {
		keys = append(keys, keyOf(vip[0], vipPort, proto), keyOf(vip[1], vipPort, proto))
	}
	return keys
}

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}
