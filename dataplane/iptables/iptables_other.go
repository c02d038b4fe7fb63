//go:build !linux

package iptables

import (
	"context"
	"errors"

	"vipd/dataplane"
)

// New says that there is no iptables on this system.
func New(context.Context, Options) (dataplane.Dataplane, error) {
	return nil, errors.New("iptables is a part of Linux; userspace mode works here")
}

// Cleanup finds nothing.
func Cleanup(context.Context, bool) ([]string, error) { return nil, nil }
