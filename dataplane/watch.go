package dataplane

import (
	"context"
	"errors"
	"strings"
	"time"
)

// watch schedules the cheap looks for damage.
type watch struct {
	timer   *time.Timer
	due     time.Time // of the next look
	soonest time.Time // an alert advances the next look to this time at most
	damaged int       // looks in a row that found damage
	failure string    // of the last look, which is logged once
}

func (w *watch) start(d time.Duration) {
	w.timer, w.due = time.NewTimer(d), time.Now().Add(d)
}

// hurry advances the next look, after an alert.
func (w *watch) hurry() {
	if w.soonest.Before(w.due) {
		w.timer.Reset(time.Until(w.soonest))
	}
}

// alertShare is the minimum time between looks after alerts, in lengths of a look: others may
// change rules all the time.
const alertShare = 20

// plan sets the time of the next look, after a look that started at began.
func (w *watch) plan(o *Options, began time.Time, damaged bool) {
	now := time.Now()
	w.soonest, w.due = now.Add(alertShare*now.Sub(began)), now.Add(o.ProbeInterval)
	if damaged && w.damaged > 1 {
		w.soonest = now.Add(o.pause(w.damaged - 1))
		if w.due.Before(w.soonest) {
			w.due = w.soonest
		}
	}
	w.timer.Reset(time.Until(w.due))
}

// look checks whether any of vipd's objects is damaged, and then makes the next round compare in
// full. While every look finds damage, looks become rarer, because a full comparison is expensive.
// Damage that a script does object by object is repaired within two seconds, up to the fifth.
func (e *Engine) look(ctx context.Context) (damaged bool) {
	w := &e.watch
	began := time.Now()
	defer func() { w.plan(&e.Options, began, damaged) }()
	if !e.report.Ready {
		return false
	}
	e.busy.start()
	reason, err := e.Dataplane.Intact(ctx)
	if reason == "" { // an error of the dataplane does not hide damage of the host
		var failed error
		reason, failed = e.Host.Intact(ctx)
		err = errors.Join(err, failed)
		e.compare.addresses = e.compare.addresses || reason != ""
		e.reportMended()
	}
	switch {
	case ctx.Err() != nil:
		return false
	case reason != "":
		w.damaged++
		e.compare.due, e.compare.damage = true, reason
		return true
	case err == nil:
		w.damaged, w.failure = 0, ""
	case err.Error() != w.failure:
		w.failure = err.Error()
		e.Log.Warn("looking whether everything is still there", "err", err)
	}
	return false
}

// reportMended reports what the host has repaired itself.
func (e *Engine) reportMended() {
	if all := e.Host.Mended(); len(all) > 0 {
		e.report.Repairs += len(all)
		e.Metrics.Repaired(len(all), strings.Join(all, "; "))
		e.publish(e.report)
	}
}
