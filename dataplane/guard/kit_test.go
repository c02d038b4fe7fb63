package guard

import (
	"net/netip"

	"vipd/test/fake"
)

// These are helpers of the tests of guard and host.
var (
	addrOf   = netip.MustParseAddr
	frontend = fake.Frontend
	forward  = fake.Forward
	sources  = fake.Sources
	dropping = fake.Dropping
	examples = fake.Examples
)
