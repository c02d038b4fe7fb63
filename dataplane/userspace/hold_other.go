//go:build !linux

package userspace

import (
	"net/netip"

	"vipd/balancer"
)

// holds: a port that is closed to clients is free for others here.
const holds = false

// heldPort is for Linux.
type heldPort struct{}

func (d *Dataplane) hold(netip.AddrPort, balancer.Protocol, bool) (*heldPort, error) { return nil, nil }

func (h *heldPort) close() {}
