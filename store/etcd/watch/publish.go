package watch

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"vipd/store/etcd/schema"
)

// due returns when something must be published.
func (w *watchRun) due() time.Time {
	due := w.timing.Now().Add(tick)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(due) {
			due = t
		}
	}
	connected, first := w.contact.connected, w.publishedAt.IsZero()
	switch {
	case connected:
	case w.unread():
		return due
	case w.published.Connected || first:
		earlier(w.contact.since.Add(w.options.Patience))
	}
	if !connected && first {
		return due
	}
	earlier(w.pending.end(quiet, longest))
	earlier(w.shown().expiry)
	if connected { // otherwise the deadline would stay in the past, and the loop would not pause
		earlier(w.refillEnd())
	}
	return due
}

// unread reports whether the first state is being read. Nothing is published before it is complete.
func (w *watchRun) unread() bool { return w.state.Revision == 0 && w.reading != nil }

func (w *watchRun) changed() { w.pending.add(w.timing.Now()) }

// publishDue publishes a snapshot if it differs from the last snapshot.
func (w *watchRun) publishDue() {
	now := w.timing.Now()
	connected, first := w.contact.connected, w.publishedAt.IsZero()
	if end := w.refillEnd(); connected && !end.IsZero() && !now.Before(end) {
		w.wiped = nil
	}
	w.state.expire(now)
	shown := w.shown()
	shown.expire(now)
	next := shown.Snapshot
	next.Problems = shown.problems()
	if w.wiped != nil {
		next.Problems = append(next.Problems, w.wiped.problem(w.keys))
	}
	if connected {
		next.Problems = append(next.Problems, w.contact.members...)
	}
	next.Connected, next.Kept = connected, !connected && w.state.Revision != 0
	patient := !connected && (w.unread() || now.Sub(w.contact.since) < w.options.Patience)
	switch {
	case patient && first:
		return // the first snapshot must be complete, unless it is late
	case patient:
		next.Connected, next.Err = w.published.Connected, w.published.Err
	case !connected:
		next.Err = w.absence()
	}
	next.Began, w.pending = w.pending.first, burst{}
	w.configure() // before overlaid, which needs the zone
	next.Services, next.Pending = w.overlaid(shown, now)
	next = next.Keeping(w.published)
	if !first && next.Same(w.published) {
		w.move(Position{w.published.Revision, next.Revision})
		return
	}
	w.published, w.publishedAt = next, now
	w.publish(next)
	w.move(Position{next.Revision, next.Revision})
}

// configure calls Configured with the configuration of this node if it has changed.
func (w *watchRun) configure() {
	var config schema.NodeConfig
	if shown := w.shown().config; shown != nil {
		config = *shown
	}
	if w.configured == nil || *w.configured != config {
		w.configured = &config
		w.options.Configured(config)
	}
}

func (w *watchRun) move(p Position) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = p
}

// absence returns the error to publish for an outage. It contains the revision in use.
func (w *watchRun) absence() error {
	where := "etcd at " + strings.Join(w.options.Endpoints, ", ")
	err := w.contact.err
	if err == nil {
		err = errors.New("no answer yet")
	}
	switch {
	case w.state.Revision == 0:
		return fmt.Errorf("%s: %w; no state was ever read", where, err)
	case w.loaded && !w.published.Connected:
		return fmt.Errorf("%s: %w; serving revision %d, saved in %s", where, err, w.shown().Revision, w.file.Path())
	}
	return fmt.Errorf("%s: %w; serving revision %d", where, err, w.shown().Revision)
}
