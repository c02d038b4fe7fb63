//go:build !linux

package command

import (
	"context"
	"errors"
)

// Trusted returns nil, because vipd runs no programs on this system.
func Trusted(string) error { return nil }

// Run returns an error, because only on Linux it could kill a program with its children.
func (c Command) Run(context.Context) (Result, error) {
	return Result{}, errors.New("vipd runs programs on Linux only")
}
