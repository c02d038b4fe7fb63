package doctor

import (
	"context"
	"strings"
)

// checkOwnership tries, where this host is to own VIPs, whether its kernel can silence it for them.
func checkOwnership(_ context.Context, v *visit) {
	switch {
	case !v.Config.Ownership.Enabled:
		return
	case !v.Root:
		v.add(note("whether the kernel can fence VIPs that have one owner can't be tried", "it takes root", "sudo vipctl doctor"))
		return
	}
	if err := v.Fence(); err != nil {
		what, _, _ := strings.Cut(oneLine(err), ": nf_tables refused")
		v.add(problem("this host can own no VIPs (hold = \"one\"): "+what, "an owner that is frozen would go on to answer for its VIPs beside the next one",
			"use a kernel of Linux 5.16 or later with netdev ingress and egress, or set ownership.enabled = false"))
		return
	}
	v.add(fine("the kernel can fence VIPs that have one owner: netdev ingress and egress"))
}
