package guard

import (
	"net/netip"

	"vipd/balancer"
)

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }

// frontend makes a frontend such as 10.96.0.10:80/tcp with one backend; edits change it.
func frontend(key string, edits ...func(*balancer.Frontend)) *balancer.Frontend {
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

func forward(how balancer.Forward) func(*balancer.Frontend) {
	return func(f *balancer.Frontend) { f.Forward = how }
}

func nodePort(f *balancer.Frontend) { f.NodePort = true }

func sources(networks ...string) func(*balancer.Frontend) {
	return func(f *balancer.Frontend) {
		for _, n := range networks {
			f.Sources = append(f.Sources, netip.MustParsePrefix(n))
		}
	}
}

func dropping(f *balancer.Frontend) { f.NoEndpoints, f.Backends = balancer.DropClients, nil }

// examples are frontends of every kind.
func examples() []*balancer.Frontend {
	sctp := frontend("10.96.0.12:5000")
	sctp.Proto = balancer.SCTP
	never := func(f *balancer.Frontend) { f.SNAT = balancer.NeverSNAT }
	always := func(f *balancer.Frontend) { f.SNAT = balancer.AlwaysSNAT }
	return []*balancer.Frontend{
		frontend("10.96.0.10:80"), frontend("10.96.0.10:53/udp"), frontend("10.96.0.11:443", sources("10.0.0.0/8", "198.51.100.7/32")), sctp,
		frontend("10.1.0.1:30080", nodePort), frontend("10.98.3.4:80", always), frontend("10.98.3.5:80", never),
		frontend("172.31.0.1:80", dropping), frontend("172.31.0.2:80", func(f *balancer.Frontend) { f.Backends = nil }),
		frontend("127.0.0.1:8080"), frontend("[fd00:96::10]:80", sources("::/0")), frontend("[fd00:96::11]:80"),
	}
}
