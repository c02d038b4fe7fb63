//go:build !linux

package probe

import "context"

// exec refuses: ending a program with all that it has started takes Linux here.
func (a *attempt) exec(context.Context) (string, error) {
	return "", localf("exec checks run on Linux only")
}
