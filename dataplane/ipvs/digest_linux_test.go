package ipvs

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane/dataplanetest"
)

// TestDigestsCoverRules changes each field of a frontend. A change that affects its virtual server
// must also change its digest.
func TestDigestsCoverRules(t *testing.T) {
	rules := func(f *balancer.Frontend) string { return Render([]*balancer.Frontend{f}) }
	dataplanetest.CheckDigests(t, rules, digest)
}
