package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"vipd/dataplane/internal/xtables"
)

// probing bounds the trials of iptables.
const probing = 30 * time.Second

// newInterception returns what was asked for, and how it came to that in words.
func newInterception(o Options, d *Dataplane) (interception, string, error) {
	want := o.Intercept
	ctx, cancel := context.WithTimeout(context.Background(), probing)
	defer cancel()
	switch want {
	case Bind:
		return bind{}, "bind", nil
	case Redirect, Auto, "":
		r, err := newRedirect(ctx, d, xtables.Backend(cmp.Or(o.Backend, AutoTables)))
		if err != nil && want == Redirect {
			return nil, "", fmt.Errorf("intercepting by redirect: %w", err)
		}
		if err != nil {
			return bind{}, "bind, because " + strings.ReplaceAll(err.Error(), "\n", "; "), nil
		}
		for _, f := range xtables.Families() {
			if r.families[f] == nil {
				return r, fmt.Sprintf("redirect, but bind for %s, where iptables does not work", f), nil
			}
		}
		return r, "redirect", nil
	}
	return nil, "", fmt.Errorf("unknown interception %q: auto, redirect and bind are possible", want)
}

// Cleanup removes the rules of the redirect interception, whichever process made them, and nothing else. It returns what
// it removed, a line each, or, with dryRun, what it would remove.
func Cleanup(ctx context.Context, dryRun bool) (removed []string, failed error) {
	for _, family := range xtables.Families() {
		for _, tool := range xtables.Existing(ctx, family) {
			there, err := tool.ChainExists(ctx, "nat", chain)
			if there && err == nil && !dryRun {
				err = remove(ctx, tool)
			}
			switch {
			case err != nil:
				failed = errors.Join(failed, fmt.Errorf("removing redirects of %s (%s): %w", family, tool.Backend(), err))
			case there:
				removed = append(removed, fmt.Sprintf("remove chain %s from table nat (%s, %s)", chain, family, tool.Backend()))
			}
		}
	}
	return removed, failed
}
