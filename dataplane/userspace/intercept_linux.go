package userspace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/dataplane/guard"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/portmap"
	"vipd/dataplane/internal/replies"
)

// maxPorts is the maximum size of a port range with redirects.
const maxPorts = 65535

// newInterception returns the requested interception. The string names the interception. If
// redirects do not work, it also gives the reason.
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
				return r, fmt.Sprintf("redirect, but bind for %s, because redirects do not work there", f), nil
			}
		}
		return r, "redirect", nil
	}
	return nil, "", fmt.Errorf("unknown interception %q: use auto, redirect or bind", want)
}

// Cleanup removes an earlier process's redirects and reply paths. It returns descriptions of the
// steps. A dry run only returns the descriptions.
func Cleanup(ctx context.Context, dryRun bool) ([]string, error) {
	done, err := guard.CleanupRedirects(ctx, dryRun)
	ranges, failed := portmap.Cleanup(dryRun, rangesTable)
	paths, failing := replies.Cleanup(dryRun)
	return slices.Concat(done, ranges, paths), errors.Join(err, failed, failing)
}
