//go:build !linux

package nftables

import (
	"errors"

	"vipd/balancer"
	"vipd/dataplane"
)

// New returns an error, because nf_tables need Linux.
func New(Options) (dataplane.Dataplane, error) {
	return nil, errors.New("not on this system: nf_tables needs Linux")
}

// Cleanup does nothing.
func Cleanup(bool) ([]string, error) { return nil, nil }

// RenderDirect returns "", because this host's routes are unknown.
func RenderDirect([]*balancer.Frontend) (string, error) { return "", nil }
