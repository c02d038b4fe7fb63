package nftables

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/internal/dnat"
)

// TestDigestsCoverRules changes each field of a frontend. A change that affects the frontend's
// rules must also change its digest.
func TestDigestsCoverRules(t *testing.T) {
	rules := func(f *balancer.Frontend) string { return Render([]*balancer.Frontend{f}, 1<<14) }
	dataplanetest.CheckDigests(t, rules, dnat.Digest)
}
