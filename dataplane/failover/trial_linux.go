package failover

import (
	"errors"
	"fmt"
	"syscall"
)

// Trial says why this kernel can't fence owned VIPs; nil means it can. It makes the gate on lo, closed and for no VIP, under a name
// of its own, opens it, and takes it away.
func Trial() error {
	g, err := NewGate(GateOptions{Table: "vipd-owner-trial"})
	if err != nil {
		return explain(err)
	}
	defer func() { _ = g.Close() }() // what was tried says more
	err = g.Install([]string{"lo"}, nil)
	if err == nil {
		err = errors.Join(g.Open(), g.Remove())
	}
	return explain(err)
}

// explain says what a refusal of the kernel means.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("it takes CAP_NET_ADMIN: run as root: %w", err)
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("the kernel has no nf_tables with netdev ingress and egress: they need Linux 5.16 with CONFIG_NETFILTER_INGRESS, CONFIG_NETFILTER_EGRESS, CONFIG_NF_TABLES_NETDEV and CONFIG_NFT_FIB_NETDEV: %w", err)
	}
	return err
}
