//go:build !linux

package ipvs

import (
	"context"
	"errors"

	"vipd/dataplane"
)

// New says that there is no IPVS on this system.
func New(context.Context, Options) (dataplane.Dataplane, error) {
	return nil, errors.New("not on this system: IPVS is a part of Linux")
}

// Cleanup finds nothing.
func Cleanup(context.Context, string, bool) ([]string, error) { return nil, nil }
