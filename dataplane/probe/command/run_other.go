//go:build !linux

package command

import (
	"context"
	"errors"
)

// Trusted returns nil, because vipd runs no programs on this system.
func Trusted(string) error { return nil }

// Run returns an error, because vipd can kill a program with its children only on Linux.
func (c Command) Run(context.Context) (Result, error) {
	return Result{}, errors.New("vipd can run programs only on Linux")
}
