package iptables

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
)

// TestDigestsCoverRules changes each field of a frontend. A change that affects the frontend's
// rules must also change its digest.
func TestDigestsCoverRules(t *testing.T) {
	rules := func(f *balancer.Frontend) string { return Render([]*balancer.Frontend{f}, "0x4000") }
	dataplanetest.CheckDigests(t, rules, func(f *balancer.Frontend) dataplane.Digest { return digest(f, "0x4000") })
}
