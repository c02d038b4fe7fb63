package ipvs

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane/dataplanetest"
)

// TestDigestsCoverRules changes each field of a frontend. If that changes its rules, it must change
// the digest.
func TestDigestsCoverRules(t *testing.T) {
	rules := func(f *balancer.Frontend) string { return Render([]*balancer.Frontend{f}) }
	dataplanetest.CheckDigests(t, rules, digest)
}
