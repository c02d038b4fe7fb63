package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Who numbers the watches of a stream. A member takes the numbers that it is asked for, which begin at 1. A gRPC proxy
// gives its own, from 0, and has no answer to requests for progress; old ones crash on them. What its clients watch
// alike it watches once, and goes on by itself when it loses a member: what is behind it, it does not tell.
const (
	unnumbered int32 = iota
	member
	proxy
)

// number learns who numbers them.
func (s *stream) number(id int64) {
	switch {
	case id == 0:
		s.server.Store(proxy)
	case len(s.order) > 0 && id == int64(s.order[len(s.order)-1]+1): // a proxy's numbers end before
		s.server.Store(member)
	}
}

// watched is the scope of a watch; nil means that is not known.
func (s *stream) watched(id int64) *followed {
	switch s.server.Load() {
	case member:
		if id > 0 && id <= int64(len(s.scopes)) {
			return &s.scopes[id-1]
		}
	case proxy:
		if id >= 0 && id < int64(len(s.order)) {
			return &s.scopes[s.order[id]]
		}
	}
	return nil
}

// holding is the scope that a key is in; nil means none.
func (s *stream) holding(key string) *followed {
	for i := range s.scopes {
		if s.scopes[i].holds(key) {
			return &s.scopes[i]
		}
	}
	return nil
}

// seen is what the stream has told last, for who asks beside it.
type seen struct {
	// revision is that of the last change, marker the key of that, with the revision marked.
	revision int64
	marker   string
	marked   int64
	scopes   []followed
}

// remember lets probe see what has been told, once all watches are there: that etcd answers does not say that they will come.
func (s *stream) remember() {
	if s.steady && s.server.Load() == proxy {
		s.seen.Store(&seen{revision: s.revision, marker: s.marker, marked: s.marked, scopes: slices.Clone(s.scopes)})
	}
}

// probe asks behind the proxy for the key that changed last. If that is what was told, the stream lives; if it goes on
// being something else while nothing is told, the stream is as silent as one without progress. The error says that
// nothing answers. Heard is what s.heard was before.
func (s *stream) probe(ctx context.Context, heard int64) error {
	told := s.seen.Load()
	if told == nil {
		return nil
	}
	key := told.marker
	if key == "" {
		key = s.scopes[0].key
	}
	answer, err := s.get(ctx, s.client, s.timing.call, &etcdserverpb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return plain(err)
	}
	same := answer.Header.ClusterId == s.cluster && answer.Header.Revision >= told.revision
	if same && told.marker != "" {
		same = len(answer.Kvs) == 1 && answer.Kvs[0].ModRevision == told.marked
	}
	if same {
		s.heard.CompareAndSwap(heard, int64(s.timing.now().Sub(s.began))) // unless something came meanwhile
	}
	return nil
}

// errLost ends an attempt behind a proxy that has changes, and does not tell of them.
var errLost = errors.New("the gRPC proxy of etcd has lost a watch")

// survey looks for watches that a proxy has lost, while the others go on and probe finds what was told: now and then it asks for each scope
// in turn how many keys there are, and whether one has changed since. The answer is short, but etcd reads the values of all keys for it.
type survey struct {
	// scope is the place of the next one, due when that is asked for.
	scope int
	due   time.Time
	// doubted is when the answer about the scope was not what was told, with next; zero means it was.
	doubted time.Time
	next    int64
}

// surveyKey is how much longer a survey waits for each key that there is: a host has etcd read 100 keys a second at most.
const surveyKey = 10 * time.Millisecond

// survey takes the next step. The error says which scope is lost: it was doubted, and nothing of it has come since.
func (s *stream) survey(ctx context.Context, v *survey) error {
	told, now := s.seen.Load(), s.timing.now()
	if told == nil || now.Before(v.due) || s.heard.Load() == handing { // then told is about to change
		return nil
	}
	f := &told.scopes[v.scope]
	switch {
	case f.denied:
	case v.doubted.IsZero():
		answer, err := s.get(ctx, s.client, s.timing.call, &etcdserverpb.RangeRequest{
			Key: []byte(f.key), RangeEnd: []byte(f.end), MinModRevision: f.next, KeysOnly: true, Limit: 1,
		})
		if err == nil && (answer.Count != f.count || len(answer.Kvs) > 0) {
			v.doubted, v.next = now, f.next
			return nil
		}
	case v.next != f.next: // it was on its way
	case now.Sub(v.doubted) > s.timing.silence:
		return fmt.Errorf("%w: %s has changed, and nothing tells of it", errLost, f.key)
	default:
		return nil
	}
	v.doubted = time.Time{}
	if v.scope++; v.scope == len(told.scopes) {
		v.scope, v.due = 0, now.Add(s.timing.survey+time.Duration(total(told.scopes))*surveyKey)
	}
	return nil
}
