package iptables

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
)

// TestDigestsCoverRules changes each field of a frontend. If a change affects the frontend's rules,
// it must also affect the digest.
func TestDigestsCoverRules(t *testing.T) {
	rules := func(f *balancer.Frontend) string { return Render([]*balancer.Frontend{f}, "0x4000") }
	dataplanetest.CheckDigests(t, rules, func(f *balancer.Frontend) dataplane.Digest { return digest(f, "0x4000") })
}
