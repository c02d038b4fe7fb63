//go:build !linux

package command

import (
	"context"
	"errors"
)

// Run refuses: ending a program with all that it has started takes Linux here.
func (c Command) Run(context.Context) (Result, error) {
	return Result{}, errors.New("vipd runs programs on Linux only")
}
