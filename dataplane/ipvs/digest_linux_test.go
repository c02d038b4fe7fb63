package ipvs

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane/dataplanetest"
)

// TestDigestsCoverRules changes each field of a frontend. If a change affects the frontend's
// virtual server, it must also affect the digest.
func TestDigestsCoverRules(t *testing.T) {
	rules := func(f *balancer.Frontend) string { return Render([]*balancer.Frontend{f}) }
	dataplanetest.CheckDigests(t, rules, digest)
}
