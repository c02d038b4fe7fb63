package watch

import (
	"testing"
	"time"

	"vipd/store"
	"vipd/store/etcd/client"
)

// TestRefillAway lets the wait for a wiped etcd's services end while etcd is unavailable. The
// source must not release the held services, or wake up to do so, until etcd is available again.
func TestRefillAway(t *testing.T) {
	s, err := New(Options{Config: client.Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/vipd"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &watchRun{Source: s, publish: func(store.Snapshot) {}, state: state{keys: s.keys, Snapshot: store.Snapshot{Revision: 7}}, publishedAt: s.timing.Now()}
	now := s.timing.Now()
	ended := now.Add(-time.Hour)
	w.wiped = &wiped{state: state{keys: s.keys}, refill: burst{ended, ended}}
	w.contact.since = ended
	w.publishDue()
	if due := w.due(); !due.After(now) {
		t.Errorf("without etcd: the next check is due in %s, want a time in the future", due.Sub(now))
	}
	if w.wiped == nil {
		t.Error("without etcd: held services were released")
	}
	w.contact.connected = true
	if due := w.due(); due.After(now) {
		t.Errorf("with etcd: the next check is due in %s, want now", due.Sub(now))
	}
	if w.publishDue(); w.wiped != nil {
		t.Error("with etcd: services are still held")
	}
}
