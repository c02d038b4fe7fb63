//go:build !linux

package vm

import (
	"context"
	"errors"
)

var errLinux = errors.New("needs Linux: the guest runs on this machine's files")

// Missing returns an error, because this system has no guests.
func Missing() error { return errLinux }

// Run returns an error, because this system has no guests.
func Run(context.Context, Options, ...string) (int, error) { return 0, errLinux }
