package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"vipd/balancer/snap"
	"vipd/store"
	"vipd/test/wait"
)

// record collects a source's snapshots, and checks that they obey the rules in the package comment.
type record struct {
	t  testing.TB
	mu sync.Mutex // guards the fields below
	// snapshots holds all published snapshots. prints holds the text of each snapshot as it was
	// published.
	snapshots []store.Snapshot
	prints    []string
	broken    string // describes the first rule that a snapshot broke

	gate    sync.Mutex  // publish waits until gate is unlocked
	waiting atomic.Bool // true while a call to publish runs or waits
}

// watch records the snapshots of a source until the test ends. It then checks that Watch returns
// nil, that no goroutine remains, and that the snapshots obey all rules.
func watch(t testing.TB, source store.Source) *record {
	t.Helper()
	before := goleak.IgnoreCurrent()
	r := &record{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Watch(ctx, r.publish) }()
	t.Cleanup(func() {
		cancel()
		var err error
		wait.For(t, within, "Watch to return after ctx has ended", func() bool {
			select {
			case err = <-done:
				return true
			default:
				return false
			}
		})
		if err != nil {
			t.Errorf("Watch after the end of ctx = %v, want nil", err)
		}
		err = goleak.Find(before)
		for range 20 { // several attempts, because goroutines end late on a busy machine
			if err == nil {
				break
			}
			err = goleak.Find(before)
		}
		if err != nil {
			t.Errorf("goroutines after Watch: %v, want none left", err)
		}
		r.check()
	})
	return r
}

func (r *record) publish(s store.Snapshot) {
	twice := r.waiting.Swap(true)
	defer r.waiting.Store(false)
	r.gate.Lock()
	defer r.gate.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if twice {
		r.breaks("publish was called while it ran")
	}
	if n := len(r.snapshots); n > 0 {
		r.compare(r.snapshots[n-1], s)
	}
	r.snapshots = append(r.snapshots, s)
	r.prints = append(r.prints, print(s))
}

func (r *record) breaks(format string, args ...any) {
	if r.broken == "" {
		r.broken = fmt.Sprintf(format, args...)
	}
}

// compare checks the rules for two successive snapshots: the revision must increase, the content
// must differ, and equal values must keep their pointers.
func (r *record) compare(before, after store.Snapshot) {
	if after.Revision <= before.Revision {
		r.breaks("revision %d was published after revision %d", after.Revision, before.Revision)
	}
	if after.Same(before) {
		r.breaks("revision %d has the same content as revision %d", after.Revision, before.Revision)
	}
	identity(r, before.Services, after.Services)
	identity(r, before.Endpoints, after.Endpoints)
	identity(r, before.Overrides, after.Overrides)
}

func identity[K snap.Ordered[K], V any](r *record, before, after snap.Map[K, *V]) {
	for key, change := range snap.Diff(before, after) {
		if change.HadOld && change.HasNew && reflect.DeepEqual(change.Old, change.New) {
			r.breaks("%v has a new pointer to an equal value", key)
		}
	}
}

// print returns the content of a snapshot as text.
func print(s store.Snapshot) string {
	all := map[string]any{"problems": s.Problems, "connected": s.Connected, "error": fmt.Sprint(s.Err), "revision": s.Revision}
	for name, service := range s.Services.All() {
		all["service "+string(name)] = service
	}
	for id, endpoint := range s.Endpoints.All() {
		all[fmt.Sprint("endpoint ", id)] = endpoint
	}
	for target, override := range s.Overrides.All() {
		all["override "+target.String()] = override
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // can't happen, because snapshots contain only plain data
	}
	return string(text)
}

// check fails the test if a snapshot broke a rule, or has changed since it was published.
func (r *record) check() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != "" {
		r.t.Error(r.broken)
	}
	for i, s := range r.snapshots {
		if now := print(s); now != r.prints[i] {
			r.t.Errorf("the snapshot of revision %d changed after it was published:\n now %s\nwant %s", s.Revision, now, r.prints[i])
		}
	}
}

// all returns the snapshots that have been published so far.
func (r *record) all() []store.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshots[:len(r.snapshots):len(r.snapshots)]
}

// wait waits until the last snapshot satisfies a condition, and returns this snapshot.
func (r *record) wait(what string, satisfied func(store.Snapshot) bool) store.Snapshot {
	r.t.Helper()
	var last store.Snapshot
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the last snapshot is %s", print(last))
		}
	}()
	wait.For(r.t, within, what, func() bool {
		all := r.all()
		if len(all) == 0 {
			return false
		}
		last = all[len(all)-1]
		return satisfied(last)
	})
	return last
}

// blockPublish makes the next call to publish wait until release is called.
func (r *record) blockPublish() (release func()) {
	r.gate.Lock()
	release = sync.OnceFunc(r.gate.Unlock)
	r.t.Cleanup(release)
	return release
}

// held reports whether a call to publish has started and not returned, for example because
// blockPublish blocks it.
func (r *record) held() bool { return r.waiting.Load() }
