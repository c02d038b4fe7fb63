//go:build !linux

package command

import (
	"context"
	"errors"
)

// Trusted returns no error: vipd runs no programs here.
func Trusted(string) error { return nil }

// Run refuses: ending a program with all that it has started takes Linux here.
func (c Command) Run(context.Context) (Result, error) {
	return Result{}, errors.New("vipd runs programs on Linux only")
}
