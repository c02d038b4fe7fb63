package guard

import (
	"context"
	"errors"
	"time"

	"vipd/dataplane/internal/xtables"
)

// What iptables says when the kernel lacks something, it also says when there was no memory for a moment, or when
// another program changed a rule that was to be deleted. So a refusal is an error at first, which the engine tries again soon.
// What is refused for as long as refusedAfter is done without, and tried again all the same, at a pace that costs a host
// nothing that really lacks it.
const (
	refusedAfter             = 5 * time.Second
	refusalFirst, refusalMax = 2 * time.Second, time.Minute
)

// refusals are what is known of the kernel's refusing one thing. The zero value: it does not.
type refusals struct {
	// since is when it began; tries counts from when the thing is done without, and due is when it is tried again.
	since, due time.Time
	tries      int
}

// again notes one more refusal, and reports whether it has lasted for so long that the thing is to be done without.
func (r *refusals) again() bool {
	now := time.Now()
	if r.since.IsZero() {
		r.since = now
	}
	if now.Sub(r.since) < refusedAfter {
		return false
	}
	r.due = now.Add(min(refusalFirst<<min(r.tries, 10), refusalMax))
	r.tries++
	return true
}

// over reports whether it is time to try again.
func (r *refusals) over() bool { return !time.Now().Before(r.due) }

// isRefused reports whether err says that iptables or the kernel does not take our rules, which are always the same.
func isRefused(err error) bool {
	var op *xtables.OpError
	return errors.As(err, &op) && !xtables.IsBusy(err)
}

// retry tries again what was refused and is due, and reports whether it was taken. What fails otherwise has time until
// it is due again.
func (g *legacy) retry(ctx context.Context) (mended bool) {
	if !g.ready || g.failed != nil || g.found == nil {
		return false
	}
	for _, p := range g.parts {
		if p.failed == nil || !p.refusals.over() {
			continue
		}
		err := g.bring(ctx, g.found, p)
		if err == nil && p.failed == nil {
			if err = g.wrote(ctx, g.found); err != nil { // it may not be there
				p.failed = err
				p.forget()
			}
		}
		if err != nil {
			p.refusals.due = time.Now().Add(refusalFirst)
			g.log.Debug("trying a part of the guard again", "part", p.def.name, "family", g.family, "err", err)
		}
		mended = mended || p.failed == nil
	}
	return mended
}
