package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"vipd/balancer"
	"vipd/balancer/health"
)

// ErrUnchecked is returned by Now for an unknown target.
var ErrUnchecked = errors.New("it has no health check")

// Exchanged is the result of a check that a user has requested.
type Exchanged struct {
	At   netip.AddrPort
	Type balancer.HealthType
	health.Result
	// Transcript is the text that Probe.Exchange returns.
	Transcript string
}

// Now runs each check of the target once, outside the schedule. The results do not affect the
// verdict. The error is ErrUnchecked, or the reason why ctx was canceled.
func (r *Runner) Now(ctx context.Context, t balancer.Target) (all []Exchanged, err error) {
	r.mu.Lock()
	w := r.targets[t]
	r.mu.Unlock()
	if w == nil {
		return nil, fmt.Errorf("checking %s: %w", t, ErrUnchecked)
	}
	for _, e := range w.checks { // a watch never changes
		if all, err = r.exchange(ctx, all, e.probe, e.key.at); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// maxManual is the maximum number of concurrent checks that users have requested. These checks have
// their own queue, so a user who requests many checks can neither start too many programs nor delay
// scheduled checks.
const maxManual = 4

// Exchange runs each check of a subject once. While maxManual other requested checks are running,
// it waits. The error is the reason why ctx was canceled.
func (r *Runner) Exchange(ctx context.Context, subject health.Subject) (all []Exchanged, err error) {
	for s := range subject.All() {
		if all, err = r.exchange(ctx, all, newProbe(s, &r.system), s.At); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (r *Runner) exchange(ctx context.Context, all []Exchanged, p *Probe, at netip.AddrPort) ([]Exchanged, error) {
	select {
	case r.manual <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for other requested checks: %w", ctx.Err())
	}
	defer func() { <-r.manual }()
	res, transcript := p.Exchange(ctx, at)
	return append(all, Exchanged{at, p.health.Type, res, transcript}), nil
}
