//go:build !linux

package guard

import (
	"errors"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane"
)

// Explain has no guard to ask: the mode restricts clients by itself.
func Explain(f *balancer.Frontend, client netip.Addr) (objects []dataplane.Object, allowed bool, err error) {
	return nil, f.Allows(client), nil
}

// Try says that the guard needs Linux.
func Try() error { return errors.New("it needs Linux") }
