package fake

import (
	"net/netip"
	"time"

	"vipd/balancer"
)

// Frontend returns a frontend with a key such as 10.96.0.10:80/tcp and one backend, changed by the
// edits.
func Frontend(key string, edits ...func(*balancer.Frontend)) *balancer.Frontend {
	k, err := balancer.ParseKey(key)
	if err != nil {
		panic(err)
	}
	f := &balancer.Frontend{
		Key: k, Service: "web", Policy: balancer.Policy{NoEndpoints: balancer.RejectClients},
		Backends: []balancer.Backend{{Addr: netip.MustParseAddrPort("192.0.2.9:8080"), State: balancer.Active, Weight: 1}},
	}
	for _, e := range edits {
		e(f)
	}
	return f
}

// Forward returns an edit that sets how packets are forwarded to backends.
func Forward(how balancer.Forward) func(*balancer.Frontend) {
	return func(f *balancer.Frontend) { f.Forward = how }
}

// NodePort is an edit that puts the frontend at an address of the node.
func NodePort(f *balancer.Frontend) { f.NodePort = true }

// Sources returns an edit that limits clients to networks.
func Sources(networks ...string) func(*balancer.Frontend) {
	return func(f *balancer.Frontend) {
		for _, n := range networks {
			f.Sources = append(f.Sources, netip.MustParsePrefix(n))
		}
	}
}

// Dropping is an edit that removes all backends and drops clients' packets.
func Dropping(f *balancer.Frontend) { f.NoEndpoints, f.Backends = balancer.DropClients, nil }

// Examples returns frontends of every kind.
func Examples() []*balancer.Frontend {
	sctp := Frontend("10.96.0.12:5000")
	sctp.Proto = balancer.SCTP
	never := func(f *balancer.Frontend) { f.SNAT = balancer.NeverSNAT }
	clamped := func(f *balancer.Frontend) { f.MSS = 1250 }
	always := func(f *balancer.Frontend) { f.SNAT = balancer.AlwaysSNAT }
	limited := func(f *balancer.Frontend) {
		f.Service = "limited"
		f.Limits = balancer.ClientLimits{Connections: 1000, SourceConnections: 100, SourceRate: balancer.Rate{N: 50, Per: time.Second}, SourcePrefix: f.Addr.BitLen() * 3 / 4}
	}
	return []*balancer.Frontend{
		Frontend("10.96.0.14:80", limited), Frontend("[fd00:96::14]:80", limited), Frontend("10.96.0.10:80"), Frontend("10.96.0.10:53/udp"), Frontend("10.96.0.11:443", Sources("10.0.0.0/8", "198.51.100.7/32")), sctp,
		Frontend("10.1.0.1:30080", NodePort), Frontend("10.98.3.4:80", always), Frontend("10.98.3.5:80", never),
		Frontend("172.31.0.1:80", Dropping), Frontend("172.31.0.2:80", func(f *balancer.Frontend) { f.Backends = nil }),
		Frontend("127.0.0.1:8080"), Frontend("[fd00:96::10]:80", Sources("::/0")), Frontend("[fd00:96::11]:80", clamped), Frontend("10.96.0.13:80", clamped),
	}
}
