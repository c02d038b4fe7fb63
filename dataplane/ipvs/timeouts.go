package ipvs

import (
	"context"
	"time"

	"vipd/dataplane/internal/ipvsnl"
)

// timeoutChange holds the kernel's timeout before vipd changed it, and the value that vipd set. It
// is zero if vipd has not changed the timeout.
type timeoutChange struct{ old, set time.Duration }

// setTimeoutsLocked sets the configured timeouts. It raises the timeout of open TCP connections to
// [Dataplane.trackedTimeout], and never lowers it below its original value.
func (d *Dataplane) setTimeoutsLocked(ctx context.Context) error {
	want := d.timeouts
	if d.trackedTimeout != nil {
		now, err := d.conn.Timeouts(ctx)
		if err != nil {
			return err
		}
		before, r := now.TCP, d.ledger.timeouts[0]
		if r != (timeoutChange{}) && now.TCP == r.set {
			before = r.old
		}
		if tracked := d.trackedTimeout(ctx); tracked > before {
			want.TCP = min(tracked, ipvsnl.MaxIdle)
		}
	}
	return setTimeouts(ctx, d.conn, d.ledger, want)
}

// setTimeouts sets the wanted timeouts, and restores the original values of all other timeouts,
// unless another program has changed them since. It records each change in the ledger before making
// it.
func setTimeouts(ctx context.Context, conn ipvsnl.Conn, l *ledger, want ipvsnl.Timeouts) error {
	if want == (ipvsnl.Timeouts{}) && l.timeouts == ([3]timeoutChange{}) {
		return nil
	}
	now, err := conn.Timeouts(ctx)
	if err != nil {
		return err
	}
	record, next := l.timeouts, ipvsnl.Timeouts{}
	for i, t := range []struct {
		want, now time.Duration
		next      *time.Duration
	}{
		{want.TCP, now.TCP, &next.TCP}, {want.TCPFin, now.TCPFin, &next.TCPFin}, {want.UDP, now.UDP, &next.UDP},
	} {
		r := &record[i]
		ours := *r != timeoutChange{} && t.now == r.set
		switch {
		case t.want != 0 && t.now != t.want:
			if !ours {
				r.old = t.now
			}
			r.set, *t.next = t.want, t.want
		case t.want == 0 && ours:
			*t.next = r.old
		}
	}
	l.setTimeouts(record)
	if err := l.save(); err != nil {
		return err
	}
	if next != (ipvsnl.Timeouts{}) {
		if err := conn.SetTimeouts(ctx, next); err != nil {
			return err
		}
	}
	for i, t := range []time.Duration{want.TCP, want.TCPFin, want.UDP} {
		if t == 0 {
			record[i] = timeoutChange{}
		}
	}
	l.setTimeouts(record)
	return l.save()
}
