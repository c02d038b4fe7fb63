//go:build !linux

package iptables

import (
	"context"
	"errors"

	"vipd/dataplane"
)

// New returns an error, because this system has no iptables.
func New(context.Context, Options) (dataplane.Dataplane, error) {
	return nil, errors.New("not on this system: iptables needs Linux")
}

// Cleanup does nothing.
func Cleanup(context.Context, bool) ([]string, error) { return nil, nil }
