package userspace

import (
	"context"
	"fmt"
	"strings"

	"vipd/dataplane/guard"
	"vipd/dataplane/internal/inet"
)

// newInterception returns what was asked for, and how it came to that in words.
func newInterception(o Options, d *Dataplane) (interception, string, error) {
	want := o.Intercept
	switch want {
	case Bind:
		return bind{}, "bind", nil
	case Redirect, Auto, "":
		r, err := newRedirect(d)
		if err != nil && want == Redirect {
			return nil, "", fmt.Errorf("intercepting by redirect: %w", err)
		}
		if err != nil {
			return bind{}, "bind, because " + strings.ReplaceAll(err.Error(), "\n", "; "), nil
		}
		for _, f := range inet.Families() {
			if r.families[f] == nil {
				return r, fmt.Sprintf("redirect, but bind for %s, where redirects do not work", f), nil
			}
		}
		return r, "redirect", nil
	}
	return nil, "", fmt.Errorf("unknown interception %q: auto, redirect and bind are possible", want)
}

// Cleanup removes the redirects that a process which is gone has left, and nothing else. It returns what it did, a line each,
// or, with dryRun, what it would do.
func Cleanup(ctx context.Context, dryRun bool) ([]string, error) {
	return guard.CleanupRedirects(ctx, dryRun)
}
