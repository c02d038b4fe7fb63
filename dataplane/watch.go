package dataplane

import (
	"context"
	"errors"
	"strings"
	"time"
)

// watch schedules the cheap checks for damage.
type watch struct {
	timer   *time.Timer
	due     time.Time // time of the next check
	soonest time.Time // earliest time of the next check, even after an alert
	damaged int       // number of consecutive checks that found damage
	failure string    // failure of the last check, logged once
}

func (w *watch) start(d time.Duration) {
	w.timer, w.due = time.NewTimer(d), time.Now().Add(d)
}

// hurry makes the next check happen as soon as plan permits, because of an alert.
func (w *watch) hurry() {
	if w.soonest.Before(w.due) {
		w.timer.Reset(time.Until(w.soonest))
	}
}

// alertShare limits the time that is spent on checks after alerts to 1/alertShare, because other
// programs may change rules constantly.
const alertShare = 20

// plan sets the time of the next check. began is the time when the last check started, and damaged
// is its result.
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

// checkDamage checks vipd's objects for damage, and reports whether it found any. The next round
// then compares everything. While every check finds damage, checks become less frequent, because a
// full comparison is expensive. If a script damages one object after another, each of the first
// five objects is repaired within two seconds.
func (e *Engine) checkDamage(ctx context.Context) (damaged bool) {
	w := &e.watch
	began := time.Now()
	defer func() { w.plan(&e.Options, began, damaged) }()
	if !e.report.Ready {
		return false
	}
	e.busy.start()
	if d, inherits := As[HandsOver](e.Dataplane); inherits {
		d.Discard(e.applied.isWaiting())
	}
	reason, err := e.Dataplane.Intact(ctx)
	if reason == "" { // check the host even if the dataplane's check failed
		var failed error
		reason, failed = e.Host.Intact(ctx)
		err = errors.Join(err, failed)
		e.compare.addresses = e.compare.addresses || reason != ""
		e.reportRepaired()
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
		e.Log.Warn("can't check whether all objects still exist", "err", err)
	}
	return false
}

// reportRepaired reports the repairs that the host itself has made.
func (e *Engine) reportRepaired() {
	if all := e.Host.Repaired(); len(all) > 0 {
		e.report.Repairs += len(all)
		e.Metrics.Repaired(len(all), strings.Join(all, "; "))
		e.publish(e.report)
	}
}
