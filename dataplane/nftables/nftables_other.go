//go:build !linux

package nftables

import (
	"errors"

	"vipd/dataplane"
)

// New fails: nf_tables are Linux's.
func New(Options) (dataplane.Dataplane, error) {
	return nil, errors.New("not on this system: nf_tables is a part of Linux")
}

// Cleanup finds nothing.
func Cleanup(bool) ([]string, error) { return nil, nil }
