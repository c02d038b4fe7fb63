//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// New returns an error, because this system has no IPVS.
func New(context.Context, Options) (dataplane.Dataplane, error) {
	return nil, errors.New("not on this system: IPVS needs Linux")
}

// Cleanup does nothing.
func Cleanup(context.Context, string, bool) ([]string, error) { return nil, nil }

// Recorded returns nothing.
func Recorded(string) ([]balancer.Key, error) { return nil, nil }

// TCPTimeout returns 0.
func TCPTimeout(context.Context) (time.Duration, error) { return 0, nil }

// HasForeign returns false.
func HasForeign(context.Context, string) (bool, error) { return false, nil }
