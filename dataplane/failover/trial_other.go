//go:build !linux

package failover

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// Trial returns an error, because this system can't fence owned VIPs.
func Trial() error { return errors.New("only Linux can fence VIPs") }

// Cleanup does nothing, because no gate can exist.
func Cleanup(bool) ([]string, error) { return nil, nil }

// Elsewhere returns nothing.
func Elsewhere(context.Context, string, []netip.Addr) (map[netip.Addr]net.HardwareAddr, error) {
	return nil, nil
}

// Neighbours returns nothing.
func Neighbours() (map[netip.Addr]string, error) { return nil, nil }

// Routers returns nothing.
func Routers() ([]netip.Addr, error) { return nil, nil }

// FollowRouters only waits until ctx is canceled.
func FollowRouters(ctx context.Context, _ func()) { <-ctx.Done() }

// Held returns nothing.
func Held() (map[int][]netip.Prefix, error) { return nil, nil }
