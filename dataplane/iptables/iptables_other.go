//go:build !linux

package iptables

import (
	"context"
	"errors"

	"vipd/dataplane"
)

// New says that there is no iptables on this system.
func New(context.Context, Options) (dataplane.Dataplane, error) {
	return nil, errors.New("not on this system: iptables is a part of Linux")
}

// Cleanup finds nothing.
func Cleanup(context.Context, bool) ([]string, error) { return nil, nil }
