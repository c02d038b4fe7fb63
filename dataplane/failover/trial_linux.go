package failover

import (
	"errors"
	"fmt"
	"syscall"
)

// Trial returns the reason why this kernel can't fence owned VIPs, or nil. On lo, it installs a
// closed gate without VIPs under another name, opens the gate, and removes it.
func Trial() error {
	g, err := NewGate(GateOptions{Table: "vipd-owner-trial"})
	if err != nil {
		return explain(err)
	}
	defer func() { _ = g.Close() }() // the trial's error is more important
	err = g.Install([]string{"lo"}, nil)
	if err == nil {
		err = errors.Join(g.Open(), g.Remove())
	}
	return explain(err)
}

// explain adds the probable cause to an error from the kernel. It returns nil if err is nil.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("it needs CAP_NET_ADMIN: run as root: %w", err)
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("the kernel has no nf_tables with netdev ingress and egress: they need Linux 5.16 with CONFIG_NETFILTER_INGRESS, CONFIG_NETFILTER_EGRESS, CONFIG_NF_TABLES_NETDEV and CONFIG_NFT_FIB_NETDEV: %w", err)
	}
	return err
}
