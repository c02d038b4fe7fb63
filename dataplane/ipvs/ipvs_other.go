//go:build !linux

package ipvs

import (
	"context"
	"errors"

	"vipd/balancer"
	"vipd/dataplane"
)

// New says that there is no IPVS on this system.
func New(context.Context, Options) (dataplane.Dataplane, error) {
	return nil, errors.New("not on this system: IPVS is a part of Linux")
}

// Cleanup finds nothing.
func Cleanup(context.Context, string, bool) ([]string, error) { return nil, nil }

// Owned finds nothing.
func Owned(string) ([]balancer.Key, error) { return nil, nil }

// HasForeign finds none.
func HasForeign(context.Context, string) (bool, error) { return false, nil }
