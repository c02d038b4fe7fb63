package nftables

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/internal/dnat"
)

// TestDigestsCoverRules changes each field of a frontend. If a change affects the frontend's rules,
// it must also affect the digest.
func TestDigestsCoverRules(t *testing.T) {
	rules := func(f *balancer.Frontend) string { return Render([]*balancer.Frontend{f}, 1<<14) }
	dataplanetest.CheckDigests(t, rules, dnat.Digest)
}
