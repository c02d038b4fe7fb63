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

// Options say what a Source reads. Main is needed.
type Options struct {
	// Main is the daemon's configuration file. Its [services.*], [defaults] and [store].path are read; its other
	// sections are left to others.
	Main string
	// StateDir is the folder that the last good state is kept in, for a start at which a file has a mistake; nil means it is not kept.
	StateDir *statedir.Dir
	// Check returns the mistakes in the sections of Main that are left to others. While there is one, nothing that has vanished from
	// the files is removed. If nil, these sections have no mistakes.
	Check func(store.Document) []balancer.Problem
	// AllowEmpty makes the first look at Main believe that it is empty, as [Reload] does for later ones.
	AllowEmpty bool
	// Log hears of each look that changed something (debug), and when changes can't be followed as they should
	// (warning). Default: nothing is logged.
	Log *slog.Logger
}

const (
	// debounce is how long files must be quiet before they are read, and patience how long they may go on changing before they
	// are read anyway.
	debounce = 20 * time.Millisecond
	patience = 10 * debounce
	// defaultPoll is the time between looks at all files, for changes that nothing was heard of, and deafPoll where the system
	// gives no notifications.
	defaultPoll = 30 * time.Second
	deafPoll    = time.Second
	// unsettledPoll is the time between looks while a file is being written.
	unsettledPoll = 200 * time.Millisecond
	// pollShare bounds the part of the time that goes into polling: one in that many.
	pollShare = 20
)

// Source follows services in files. It implements store.Source.
type Source struct {
	options Options
	file    *statedir.File
	// open starts notifications, which tests make fail, and poll is defaultPoll but in tests.
	open func() (*fsnotify.Watcher, error)
	poll time.Duration
	// reloads are requests to read everything again, each answered with the problems once the result is published.
	reloads chan request

	mu     sync.Mutex // held while Watch runs, which owns loader
	loader *loader
}

// Reload says how a reload treats definitions that have vanished.
type Reload struct {
	// AllowEmpty believes a main file that is empty. Otherwise such a file is a problem, and its former content stays in use.
	AllowEmpty bool
	// Prune removes what has vanished from the files and is kept because of an error.
	Prune bool
}

// request is a reload that somebody waits for.
type request struct {
	Reload
	answer chan<- []balancer.Problem
}

var _ store.Source = (*Source)(nil)

// New returns a source that reads nothing before Watch.
func New(o Options) *Source {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Source{
		options: o, open: fsnotify.NewWatcher, poll: defaultPoll, reloads: make(chan request), loader: newLoader(o.Main, ""),
		file: o.StateDir.File(keepName, "the last good state of files is not kept", statedir.Large),
	}
}

// Watch publishes what the files hold, now and after each change, until ctx ends, and returns nil then. The one error
// is that it runs already.
func (s *Source) Watch(ctx context.Context, publish func(store.Snapshot)) error {
	if !s.mu.TryLock() {
		return errors.New("watching files: Watch runs already")
	}
	defer s.mu.Unlock()
	f := newFollower(s.options.Log, s.open)
	defer f.close()
	s.loader.follow, s.loader.check = f, s.options.Check
	err := s.file.Load(func(text []byte) error {
		kept, err := decodeKept(text)
		if err == nil {
			s.loader.begin(kept)
		}
		return err
	})
	if err != nil {
		s.options.Log.Error("the last good state of files can't be read", "err", err)
	}
	w := &watchRun{Source: s, follower: f}
	what, answer, ok := look{all: true, Reload: Reload{AllowEmpty: s.options.AllowEmpty}}, chan<- []balancer.Problem(nil), true
	for first := true; ok; what, answer, ok = w.next(ctx) {
		if w.load(what) || first {
			publish(s.loader.state)
			good := s.loader.good()
			s.file.Keep(func(w *bufio.Writer) error { return encodeKept(w, good) })
		}
		if first = false; answer != nil {
			answer <- s.loader.state.Problems
		}
	}
	return nil
}

// Reload reads everything again, also what seems unchanged, and returns when the result has been published, with all
// problems that there are. It waits for Watch to run, and fails only when ctx ends before.
func (s *Source) Reload(ctx context.Context) ([]balancer.Problem, error) {
	return s.ReloadAs(ctx, Reload{})
}

// ReloadAs is [Source.Reload] as r says.
func (s *Source) ReloadAs(ctx context.Context, r Reload) ([]balancer.Problem, error) {
	answer := make(chan []balancer.Problem, 1)
	select {
	case s.reloads <- request{r, answer}:
		return <-answer, nil // Watch answers every request that it has taken
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// watchRun is one run of Watch.
type watchRun struct {
	*Source
	follower *follower
	// due is when everything is to be looked at again, even without a request.
	due time.Time
}

// load looks, and reports whether the snapshot says something else now.
func (w *watchRun) load(what look) bool {
	began := time.Now()
	changed := w.loader.load(what)
	took := time.Since(began)
	if what.all {
		pause := w.poll
		if w.follower.deaf {
			pause = min(pause, max(deafPoll, pollShare*took))
		}
		w.due = time.Now().Add(pause)
	}
	// No notification tells that a writer has closed a file.
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

// next waits for something to look at. The answer is that of a reload, else nil; false: ctx has ended.
func (w *watchRun) next(ctx context.Context) (look, chan<- []balancer.Problem, bool) {
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
	poll := time.NewTimer(time.Until(w.due))
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
			// Most likely there were more notifications than the system keeps.
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
