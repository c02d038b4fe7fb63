package guard

import (
	"net/netip"

	"vipd/test/fake"
)

var (
	addrOf   = netip.MustParseAddr
	frontend = fake.Frontend
	forward  = fake.Forward
	sources  = fake.Sources
	dropping = fake.Dropping
	examples = fake.Examples
)
