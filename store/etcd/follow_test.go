package etcd_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store"
	"vipd/store/etcd/watch"
	"vipd/store/statedir"
	"vipd/test/wait"
)

// within limits how long reactions may take. They are immediate, except on a busy machine.
const within = time.Minute

// follower records the snapshots of a source. It checks the guarantees of the source that must hold
// even during outages.
type follower struct {
	t      testing.TB
	Source *watch.Source
	stop   func()

	mu     sync.Mutex // guards the fields below
	all    []store.Snapshot
	broken string
}

// follow watches the source until the test ends or the follower's stop is called.
func follow(t testing.TB, source *watch.Source) *follower {
	t.Helper()
	f := &follower{t: t, Source: source}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Watch(ctx, f.publish) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch = %v, want nil", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.broken != "" {
			t.Error(f.broken)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// followWithState is like follow, but the source saves its state in the directory path. When the
// follower's stop returns, the state is saved.
func followWithState(t testing.TB, o watch.Options, path string) *follower {
	t.Helper()
	o.StateDir = statedir.New(path, func() {})
	f := follow(t, newSource(t, o))
	stop := f.stop
	f.stop = sync.OnceFunc(func() {
		stop()
		if err := o.StateDir.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

func (f *follower) publish(s store.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.all); n > 0 {
		before := f.all[n-1]
		if s.Same(before) {
			f.breaks("revision %d was published without a change after %d", s.Revision, before.Revision)
		}
		if kept := s.Keeping(before); !kept.Same(s) {
			f.breaks("revision %d has new pointers to equal values", s.Revision)
		}
	}
	f.all = append(f.all, s)
}

func (f *follower) breaks(format string, args ...any) {
	if f.broken == "" {
		f.broken = fmt.Sprintf(format, args...)
	}
}

func (f *follower) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// turns returns how often the source has changed between connected and disconnected.
func (f *follower) turns() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.all {
		if i > 0 && s.Connected != f.all[i-1].Connected {
			n++
		}
	}
	return n
}

func (f *follower) last() store.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.all) == 0 {
		return store.Snapshot{}
	}
	return f.all[len(f.all)-1]
}

// wait waits until the last snapshot satisfies a condition, and returns this snapshot.
func (f *follower) wait(what string, is func(store.Snapshot) bool) store.Snapshot {
	f.t.Helper()
	defer f.logSnapshots()
	var last store.Snapshot
	wait.For(f.t, within, what, func() bool { last = f.last(); return f.count() > 0 && is(last) })
	return last
}

// logSnapshots logs the last snapshots if the test has failed.
func (f *follower) logSnapshots() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.t.Failed() {
		return
	}
	for i, s := range f.all[max(0, len(f.all)-5):] {
		f.t.Logf("snapshot %d of the last of %d: revision %d, connected %t (%v), %d services, %d endpoints, %d overrides, problems %v",
			i, len(f.all), s.Revision, s.Connected, s.Err, s.Services.Len(), s.Endpoints.Len(), s.Overrides.Len(), s.Problems)
	}
	f.t.Logf("position %+v", f.Source.Position())
}

// reaches waits until the source has published all changes up to a revision, and returns the last
// snapshot. It reads the source's position first, because otherwise the snapshot could be older
// than the position.
func (f *follower) reaches(revision int64) store.Snapshot {
	f.t.Helper()
	defer f.logSnapshots()
	seen := func() bool { return f.Source.Position().Seen >= revision }
	wait.For(f.t, within, fmt.Sprintf("revision %d", revision), func() bool { return seen() && f.last().Connected })
	return f.last()
}

// waitForRevision waits until the source has seen all changes up to a revision, even if it is not
// connected.
func (f *follower) waitForRevision(revision int64) {
	f.t.Helper()
	defer f.logSnapshots()
	wait.For(f.t, within, fmt.Sprintf("revision %d to be seen", revision), func() bool { return f.Source.Position().Seen >= revision })
}

func connected(s store.Snapshot) bool { return s.Connected }

// newSource returns a source with short intervals.
func newSource(t testing.TB, o watch.Options) *watch.Source {
	t.Helper()
	if o.Timing == nil {
		o.Timing = hastened()
	}
	s, err := watch.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// agree returns an error if two snapshots differ. Objects with problems may differ, because one of
// the snapshots may contain their last valid state.
func agree(a, b store.Snapshot) error {
	bad, badVIPs := map[string]bool{}, false
	for _, s := range []store.Snapshot{a, b} {
		for _, p := range s.Problems {
			if p.Severity == balancer.SeverityError {
				bad[p.Origin.Key] = true
				badVIPs = badVIPs || strings.HasPrefix(p.Origin.Key, "/vipda/vips/")
			}
		}
	}
	if badVIPs { // the holder of an address with a problem may differ, and so may all that depends on it
		a, b = withoutVIPs(a), withoutVIPs(b)
	}
	key := func(key string) bool { return bad[key] }
	if err := same("service", a.Services, b.Services, func(n balancer.Name) bool { return key("/vipda/services/" + string(n)) }); err != nil {
		return err
	}
	if err := same("endpoint", a.Endpoints, b.Endpoints, func(id balancer.EndpointID) bool {
		return key("/vipda/endpoints/" + string(id.Service) + "/" + id.ID)
	}); err != nil {
		return err
	}
	if err := same("override", a.Overrides, b.Overrides, func(t balancer.Target) bool { return key("/vipda/overrides/" + t.String()) }); err != nil {
		return err
	}
	if !reflect.DeepEqual(a.Problems, b.Problems) {
		return fmt.Errorf("problems = %v and %v, want equal problems", a.Problems, b.Problems)
	}
	return nil
}

// withoutVIPs returns a snapshot without allocated addresses and their problems.
func withoutVIPs(s store.Snapshot) store.Snapshot {
	for name, service := range s.Services.All() {
		bare := *service
		bare.Allocated = nil
		s.Services = s.Services.Set(name, &bare)
	}
	s.Problems = slices.DeleteFunc(slices.Clone(s.Problems), func(p balancer.Problem) bool {
		return strings.HasPrefix(p.Origin.Key, "/vipda/vips/")
	})
	return s
}

func same[K snap.Ordered[K], V any](what string, a, b snap.Map[K, *V], bad func(K) bool) error {
	am, bm := maps.Collect(a.All()), maps.Collect(b.All())
	maps.DeleteFunc(am, func(k K, _ *V) bool { return bad(k) })
	maps.DeleteFunc(bm, func(k K, _ *V) bool { return bad(k) })
	if len(am) != len(bm) {
		return fmt.Errorf("numbers = %d and %d of %ss, want equal numbers", len(am), len(bm), what)
	}
	for k, v := range am {
		if !reflect.DeepEqual(v, bm[k]) {
			return fmt.Errorf("%s %v = %+v and %+v, want the same", what, k, v, bm[k])
		}
	}
	return nil
}
