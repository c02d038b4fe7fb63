package host

import (
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// TestModeChanges switches between modes, with frontends of each kind. Only the rules and sysctls
// that the current mode needs may exist.
func TestModeChanges(t *testing.T) {
	l, client := network(t)
	l.Host().Sysctl(forward4, "1")
	l.Host().Sysctl(forward6, "1")
	primeTools(t)
	before := dumpHost(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	userspace, iptables, ipvs := dataplane.Needs{}, dataplane.Needs{Forward: true, Marked: true, Resets: true}, dataplane.Needs{Forward: true, LocalIn: true}
	for _, m := range []dataplane.Needs{
		userspace, userspace.And(ipvs), ipvs, ipvs.And(iptables), iptables, iptables.And(ipvs), ipvs, ipvs.And(userspace), userspace, iptables, userspace,
	} {
		frontends := []*balancer.Frontend{
			frontend("10.96.0.10:80"), frontend("10.96.0.11:80", sources("10.1.0.0/24")), frontend("[fd00:96::10]:80", snat(balancer.AlwaysSNAT)),
			frontend("10.96.0.12:80", dropping),
		}
		if m.LocalIn { // other modes treat direct frontends as frontends with nat
			frontends = append(frontends, frontend("10.96.0.13:80", forward(balancer.DRForward)), frontend("[fd00:96::13]:80", forward(balancer.TunnelForward)))
		}
		h.SetMode(m)
		apply(t, h, frontends...)
		apply(t, h, frontends...) // the second round is needed to remove direct frontends
		checkIntact(t, h)
		checkAttempt(t, client, "10.96.0.11:80", open)
		checkAttempt(t, client, "10.96.0.12:80", silence)
		checkAttempt(t, client, "10.96.0.10:81", refused)
		if p := h.Problems(); len(p) != 0 {
			t.Errorf("%+v: problems = %v, want none", m, p)
		}
		if got := strings.Contains(l.Host().Exec("nft", "list", "table", "ip", "vipd-guard"), "notrack"); got != m.LocalIn {
			t.Errorf("%+v: notrack rules exist = %t, want the same value as LocalIn", m, got)
		}
	}
	finishNothing(t, h)
	checkUnchanged(t, before)
}
