//go:build !linux

package ipvs

import (
	"context"

	"vipd/balancer"
)

// Owned finds nothing.
func Owned(string) ([]balancer.Key, error) { return nil, nil }

// HasForeign finds none.
func HasForeign(context.Context, string) (bool, error) { return false, nil }
