package tomlfile

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/statedir"
)

// Options configures a Source. Main is required.
type Options struct {
	// Main is the daemon's configuration file. The source reads its [services.*], [vips.*],
	// [defaults] and [store].path. It publishes the other sections as Settings.
	Main string
	// The last good state is saved in StateDir, so vipd can start even if a file has a mistake. If
	// nil, the state is not saved.
	StateDir *statedir.Dir
	// Check returns the mistakes in the other sections of Main. While there is a mistake,
	// definitions that have disappeared from the files are not removed. If nil, these sections are
	// not checked.
	Check func(store.Document) []balancer.Problem
	// AllowEmpty makes the first read accept an empty Main, as [Reload] does for later reads.
	AllowEmpty bool
	// Pended receives each step of a pending change, and its author. If nil, steps are not
	// reported.
	Pended func(p *store.Pending, how store.Outcome, by string)
	// Log receives each change (debug), and failures to watch files (warning). If nil, nothing is
	// logged.
	Log *slog.Logger
}

const (
	// debounce is how long files must be unchanged before they are read. patience is the maximum
	// delay if files change constantly.
	debounce = 20 * time.Millisecond
	patience = 10 * debounce
	// defaultPoll is the interval at which all files are checked, in case of missed notifications.
	// deafPoll is the interval if the system does not send notifications.
	defaultPoll = 30 * time.Second
	deafPoll    = time.Second
	// unsettledPoll is the interval at which files are checked while one of them is being written.
	unsettledPoll = 200 * time.Millisecond
	// pollShare limits polling to 1/pollShare of the time.
	pollShare = 20
)

// Source follows services in files. It implements store.Source.
type Source struct {
	options Options
	file    *statedir.File
	// record is the file with the pending change.
	record *statedir.File
	// open starts notifications. Tests replace it with a function that fails. poll is defaultPoll
	// except in tests.
	open func() (*fsnotify.Watcher, error)
	poll time.Duration
	// reloads receives requests to read everything again. Each request is answered with the
	// problems, once the result is published.
	reloads chan request

	mu     sync.Mutex // held while Watch runs, because Watch owns loader
	loader *loader
}

// Reload holds the options of a reload. The zero value only reads the files again.
type Reload struct {
	// AllowEmpty accepts an empty main file. Otherwise such a file is a problem, and its previous
	// content stays in use.
	AllowEmpty bool
	// Prune removes definitions that have disappeared from the files but that an error would
	// otherwise keep.
	Prune bool
	// Try, if not nil, starts a pending change: until Try.Until, vipd uses Try.Text instead of
	// Main's text. Abort ends the pending change. By is the author of the request.
	Try   *store.Pending
	Abort bool
	By    string
}

type request struct {
	Reload
	answer chan<- answer
}

// answer is the result of a reload: all problems, or the reason why it was refused.
type answer struct {
	problems []balancer.Problem
	err      error
}

var _ store.Source = (*Source)(nil)

// New returns a source. The source reads nothing until Watch is called.
func New(o Options) *Source {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Pended == nil {
		o.Pended = func(*store.Pending, store.Outcome, string) {}
	}
	return &Source{
		options: o, open: fsnotify.NewWatcher, poll: defaultPoll, reloads: make(chan request), loader: newLoader(o.Main, ""),
		file:   o.StateDir.File(keepName, "the files' last good state is not saved", statedir.Large),
		record: o.StateDir.File(pendingName, "vipd can't record that a change is no longer pending", statedir.Small),
	}
}

// Watch publishes the content of the files, and publishes it again after each change. It returns
// nil when ctx ends. It returns an error only if Watch is already running.
func (s *Source) Watch(ctx context.Context, publish func(store.Snapshot)) error {
	if !s.mu.TryLock() {
		return errors.New("watching files: Watch is already running")
	}
	defer s.mu.Unlock()
	f := newFollower(s.options.Log, s.open)
	defer f.close()
	s.loader.follow, s.loader.check = f, s.options.Check
	w := &watchRun{Source: s, follower: f}
	what := look{all: true, Reload: Reload{AllowEmpty: s.options.AllowEmpty}}
	asked := chan<- answer(nil)
	ok := true
	w.begin(&what)
	for first := true; ok; what, asked, ok = w.next(ctx) {
		refused := w.pend(&what)
		if w.load(what) || first {
			publish(s.loader.state)
			w.keepGood()
		}
		if first = false; asked != nil {
			asked <- answer{s.loader.state.Problems, refused}
		}
	}
	return nil
}

// keepGood saves the last good state, unless a pending change may still be reverted.
func (s *Source) keepGood() {
	if s.loader.main.trial != nil {
		return
	}
	good := s.loader.good()
	s.file.Keep(func(w *bufio.Writer) error { return encodeKept(w, good) })
}

// Reload reads everything again, even files that seem unchanged. It returns all problems once the
// result is published. It waits until Watch runs, and fails only if ctx ends first.
func (s *Source) Reload(ctx context.Context) ([]balancer.Problem, error) {
	return s.ReloadAs(ctx, Reload{})
}

// ReloadAs works like [Source.Reload], with options. It also fails if it can't start or end a
// pending change.
func (s *Source) ReloadAs(ctx context.Context, r Reload) ([]balancer.Problem, error) {
	asked := make(chan answer, 1)
	select {
	case s.reloads <- request{r, asked}:
		a := <-asked // Watch answers every request that it receives
		return a.problems, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin restores the state that an earlier process has saved, and resumes its pending change.
func (w *watchRun) begin(what *look) {
	var kept *goodState
	err := w.file.Load(func(text []byte) (err error) {
		kept, err = decodeKept(text)
		return err
	})
	if err != nil {
		w.options.Log.Error("the files' last good state can't be read", "err", err)
	}
	if kept != nil {
		w.loader.begin(kept)
	}
	w.resume(what, kept)
}

// watchRun is the state of one call to Watch.
type watchRun struct {
	*Source
	follower *follower
	// due is when the next full check is due, unless one is requested earlier.
	due time.Time
}

// load checks the files, and reports whether the snapshot has changed.
func (w *watchRun) load(what look) bool {
	began := time.Now()
	changed := w.loader.load(what)
	took := time.Since(began)
	if what.all {
		pause := w.poll
		if w.follower.pollOnly {
			pause = min(pause, max(deafPoll, pollShare*took))
		}
		w.due = time.Now().Add(pause)
	}
	// No notification reports that a writer has closed a file.
	if soon := time.Now().Add(unsettledPoll); w.loader.unsettled && soon.Before(w.due) {
		w.due = soon
	}
	if changed {
		w.loader.state.Began = began
		w.options.Log.Debug("read files", "all", what.all, "rev", w.loader.state.Revision,
			"services", w.loader.state.Services.Len(), "problems", len(w.loader.state.Problems), "took", took)
	}
	return changed
}

// next waits until files must be checked, and selects them. After a request to reload, it also
// returns the channel for the answer; otherwise the channel is nil. The bool is false if ctx has
// ended.
func (w *watchRun) next(ctx context.Context) (look, chan<- answer, bool) {
	what := look{files: map[string]bool{}}
	var quiet <-chan time.Time
	var first time.Time
	heard := func() {
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		quiet = time.After(min(debounce, first.Add(patience).Sub(now)))
	}
	due := w.due
	if p := w.loader.main.trial; p != nil && p.Until.Before(due) {
		due = p.Until
	}
	poll := time.NewTimer(time.Until(due))
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return what, nil, false
		case r := <-w.reloads:
			return look{all: true, forced: true, Reload: r.Reload}, r.answer, true
		case e, ok := <-w.follower.events:
			if !ok {
				w.follower.lost()
				return look{all: true}, nil, true
			}
			if w.follower.note(&what, e) {
				heard()
			}
		case err := <-w.follower.errors:
			// Probably the system's queue of notifications overflowed.
			w.options.Log.Debug("notifications of changed files were lost", "err", err)
			what.all = true
			heard()
		case <-quiet:
			return what, nil, true
		case <-poll.C:
			return look{all: true}, nil, true
		}
	}
}
