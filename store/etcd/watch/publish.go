package watch

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"vipd/store/etcd/schema"
)

// due is when something is to be published.
func (w *watching) due() time.Time {
	due := w.timing.Now().Add(tick)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(due) {
			due = t
		}
	}
	switch {
	case w.connected:
	case w.unread():
		return due
	case w.published.Connected || !w.everTold:
		earlier(w.awaySince.Add(w.options.Patience))
	}
	if !w.connected && !w.everTold {
		return due
	}
	if !w.last.IsZero() {
		earlier(w.last.Add(quiet))
		earlier(w.first.Add(longest))
	}
	earlier(w.shown().expiry)
	if w.connected { // else nothing comes of it, and it would be due over and over
		earlier(w.refillEnd())
	}
	return due
}

// unread reports whether the very first state is just being read: there is nothing to say until it is there.
func (w *watching) unread() bool { return w.state.revision == 0 && w.reading != nil }

// changed notes that there may be something to publish.
func (w *watching) changed() {
	w.last = w.timing.Now()
	if w.first.IsZero() {
		w.first = w.last
	}
}

// tell publishes what there is to publish.
func (w *watching) tell() {
	now := w.timing.Now()
	if end := w.refillEnd(); w.connected && !end.IsZero() && !now.Before(end) {
		w.wiped = nil
	}
	w.state.expire(now)
	shown := w.shown()
	shown.expire(now)
	next := shown.snapshot()
	next.Problems = shown.problems()
	if w.wiped != nil {
		next.Problems = append(next.Problems, w.wiped.problem(w.keys))
	}
	if w.connected {
		next.Problems = append(next.Problems, w.members...)
	}
	next.Connected, next.Kept = w.connected, !w.connected && w.state.revision != 0
	patient := !w.connected && (w.unread() || now.Sub(w.awaySince) < w.options.Patience)
	switch {
	case patient && !w.everTold:
		return // the first is complete, or late
	case patient:
		next.Connected, next.Err = w.published.Connected, w.published.Err
	case !w.connected:
		next.Err = w.absence()
	}
	next.Began = w.first
	w.first, w.last = time.Time{}, time.Time{}
	w.configure()
	next = next.Keeping(w.published)
	if w.everTold && next.Same(w.published) {
		w.move(Position{w.published.Revision, next.Revision})
		return
	}
	w.everTold, w.published, w.told = true, next, now
	w.publish(next)
	w.move(Position{next.Revision, next.Revision})
}

// configure tells what this node is told, where that is news.
func (w *watching) configure() {
	var config schema.NodeConfig
	if told := w.shown().config; told != nil {
		config = *told
	}
	if w.configured == nil || *w.configured != config {
		w.configured = &config
		w.options.Configured(config)
	}
}

func (w *watching) move(p Position) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = p
}

// absence says that etcd is away, and what is served meanwhile.
func (w *watching) absence() error {
	where := "etcd at " + strings.Join(w.options.Endpoints, ", ")
	err := w.err
	if err == nil {
		err = errors.New("no answer yet")
	}
	switch {
	case w.state.revision == 0:
		return fmt.Errorf("%s: %w; nothing was ever read from there", where, err)
	case w.loaded && !w.published.Connected:
		return fmt.Errorf("%s: %w; serving revision %d, kept in %s", where, err, w.shown().revision, w.file.Path())
	}
	return fmt.Errorf("%s: %w; serving revision %d", where, err, w.shown().revision)
}
