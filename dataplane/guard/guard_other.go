//go:build !linux

package guard

import (
	"errors"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane"
)

// Explain returns no objects, because the mode itself restricts clients on these systems.
func Explain(f *balancer.Frontend, client netip.Addr) (objects []dataplane.Object, allowed bool, err error) {
	return nil, f.Allows(client), nil
}

// FullLimits returns no frontends, because there is no guard.
func FullLimits() ([]balancer.Key, error) { return nil, nil }

// Try returns an error, because the guard needs Linux.
func Try() error { return errors.New("it needs Linux") }
