//go:build !linux

package command

import (
	"context"
	"errors"
)

// Trusted returns no error: vipd runs no programs here.
func Trusted(string) error { return nil }

// Run refuses: killing a program with its children is implemented for Linux only.
func (c Command) Run(context.Context) (Result, error) {
	return Result{}, errors.New("vipd runs programs on Linux only")
}
