//go:build !linux

package userspace

import (
	"context"
	"fmt"
	"runtime"
)

// newInterception returns the only one that there is here.
func newInterception(o Options, _ *Dataplane) (interception, string, error) {
	if o.Intercept == Redirect {
		return nil, "", fmt.Errorf("intercepting by redirect: %s has no iptables: use bind", runtime.GOOS)
	}
	return bind{}, "bind", nil
}

// Cleanup has nothing to remove: sockets end with their process.
func Cleanup(context.Context, bool) ([]string, error) { return nil, nil }
