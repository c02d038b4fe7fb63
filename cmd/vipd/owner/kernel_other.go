//go:build !linux

package owner

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// NewKernel returns an error: owning VIPs needs Linux.
func NewKernel(*slog.Logger, time.Duration, time.Duration) Maker {
	return func([]string, map[netip.Addr]string, func(netip.Addr, net.HardwareAddr)) (Kernel, error) {
		return nil, errors.New("owning VIPs needs Linux")
	}
}
