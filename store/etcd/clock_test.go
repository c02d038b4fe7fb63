package etcd_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/store"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestClockJump sets the host's clock forward or back by an hour. No data may be lost, and nothing
// may be published again without a change. Only objects that expire at a time of day may end.
func TestClockJump(t *testing.T) {
	t.Parallel()
	for _, hours := range []int64{1, -1} {
		t.Run(fmt.Sprint(hours), func(t *testing.T) {
			c := etcdkit.Start(t, etcdkit.Options{})
			p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
			soon, late := time.Now().Add(30*time.Minute), time.Now().Add(3*time.Hour)
			p.put("/services/web", `{"vips":["10.96.0.10"],"ports":[{"port":80}]}`)
			p.put("/overrides/web/10.0.0.1", fmt.Sprintf(`{"weight":5,"expires":%q}`, soon.Format(time.RFC3339)))
			p.put("/overrides/web/10.0.0.2", fmt.Sprintf(`{"weight":5,"expires":%q}`, late.Format(time.RFC3339)))
			p.put("/overrides/web/10.0.0.3", `{"weight":5}`)
			ids := leased(t, p, 2)
			var lost atomic.Pointer[error]
			ahead := &atomic.Int64{}
			source := newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond, Connection: func(_ int64, err error) {
				if err != nil {
					lost.Store(&err)
				}
			}, Timing: hastened(silence(wait.Bound(0)), wallClock(ahead))}) // the silence is shorter than the jump, but longer than a busy machine's pauses
			f := follow(t, source)
			f.wait("the first state", connected)
			for _, id := range ids { // both endpoints vanish together, so they stay in use
				if _, err := p.client.Revoke(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			before := f.wait("the kept endpoints", func(s store.Snapshot) bool { return s.Endpoints.Len() == 2 && len(s.Problems) == 1 })
			n, want := f.count(), f.count()
			ahead.Store(hours * 3600)
			if hours > 0 {
				want++
				f.wait("the override to expire", func(s store.Snapshot) bool { return s.Overrides.Len() == 2 })
			}
			time.Sleep(3 * time.Second) // meanwhile, the source often checks whether the stream is silent
			last := f.last()
			if f.count() != want || last.Services != before.Services || last.Endpoints != before.Endpoints || !last.Connected {
				t.Errorf("snapshots since the jump = %d; the last has %d endpoints, connected = %t (%v); want only the expired override to change", f.count()-n, last.Endpoints.Len(), last.Connected, last.Err)
			}
			if err := lost.Load(); err != nil {
				t.Errorf("after the jump: outage = %v, want none", *err)
			}
			f.reaches(p.put("/services/web", web))
			ahead = &atomic.Int64{}
			second := newSource(t, watch.Options{Config: p.config, Patience: time.Millisecond, Timing: hastened(wallClock(ahead))})
			f = follow(t, second)
			f.wait("the first state", connected)
			ahead.Store(hours * 3600)
			c.Members[0].Pause() // even after a jump, a silence must be detected
			f.wait("the silence to be noticed", func(s store.Snapshot) bool { return !s.Connected })
			ahead.Store(0)
			c.Members[0].Resume()
			f.wait("the return", connected)
		})
	}
}

// leased writes n endpoints of the service "web", each under its own lease.
func leased(t *testing.T, p *place, n int) (ids []clientv3.LeaseID) {
	t.Helper()
	for i := range n {
		lease, err := p.client.Grant(t.Context(), 600)
		if err != nil {
			t.Fatal(err)
		}
		p.put(fmt.Sprint("/endpoints/web/", i), fmt.Sprintf(`{"address":"10.0.0.%d"}`, i+1), clientv3.WithLease(lease.ID))
		ids = append(ids, lease.ID)
	}
	return ids
}

// lockedText is the text of a log, which a goroutine may write while another reads it.
type lockedText struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lockedText) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
