//go:build !linux

package dnat

import (
	"log/slog"
	"net/netip"
)

// NewProxied returns nil: there is no conntrack on this system.
func NewProxied(*slog.Logger, func(netip.Addr) bool) *Carried { return nil }
