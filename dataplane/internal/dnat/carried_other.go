//go:build !linux

package dnat

import (
	"log/slog"
	"net/netip"
)

// NewProxied returns nil, because this system has no conntrack.
func NewProxied(*slog.Logger, func(netip.Addr) bool) *Carried { return nil }
