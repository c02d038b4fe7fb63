package host

import (
	"net/netip"

	"vipd/balancer"
	"vipd/test/fake"
)

var (
	addrOf   = netip.MustParseAddr
	frontend = fake.Frontend
	forward  = fake.Forward
	nodePort = fake.NodePort
	sources  = fake.Sources
	dropping = fake.Dropping
	examples = fake.Examples
)

// desired returns a compiled state that has the given frontends.
func desired(frontends ...*balancer.Frontend) balancer.Desired {
	var d balancer.Desired
	for _, f := range frontends {
		d.Frontends = d.Frontends.Set(f.Key, f)
		if !f.NodePort {
			d.Addresses = d.Addresses.Set(f.Addr, d.Addresses.At(f.Addr)+1)
		}
	}
	return d
}
