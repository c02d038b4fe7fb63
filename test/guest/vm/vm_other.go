//go:build !linux

package vm

import (
	"context"
	"errors"
)

var errLinux = errors.New("needs Linux: the guest runs on this machine's files")

// Missing says that there is no guest here.
func Missing() error { return errLinux }

// Run says that there is no guest here.
func Run(context.Context, Options, ...string) (int, error) { return 0, errLinux }
