package client

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vipd/balancer/lib/wake"
	"vipd/store/etcd/schema"
)

// Members uses one etcd member at a time: the first that proves that it has not lost the other
// members. If a request stays unanswered, Members tests all members again. It uses the first member
// that answers, and ends the watches on the previous member. Its methods are safe for concurrent
// use.
type Members struct {
	config Config
	// key is the key that members must read to prove themselves. It need not exist.
	key string
	// seen is the highest revision that etcd has reported. A member with a lower revision has
	// another history, and is used only if no other member answers.
	seen atomic.Int64

	current  atomic.Pointer[Member] // nil if the next request must choose a member
	choosing chan struct{}          // a semaphore that is held while a member is chosen or abandoned
	order    []string               // the endpoints, starting with the member in use; guarded by choosing
}

// errMoved is the cause with which requests and watches end on a member that has lost the other
// members.
var errMoved = errors.New("the etcd member in use stopped answering: vipd has moved to another member")

// NewMembers returns members that connect when they are first used.
func NewMembers(c Config, keys schema.Keys) *Members {
	s := &Members{config: c, key: keys.Prefix + schema.ServiceFolder, choosing: make(chan struct{}, 1), order: slices.Clone(c.Endpoints)}
	rand.Shuffle(len(s.order), func(i, j int) { s.order[i], s.order[j] = s.order[j], s.order[i] })
	return s
}

// Close closes the connection. The next request opens a new connection.
func (s *Members) Close() {
	s.choosing <- struct{}{}
	defer func() { <-s.choosing }()
	s.replaceLocked(nil)
}

// noteRevision raises seen to the revision of an answer, if that is higher.
func (s *Members) noteRevision(h *etcdserverpb.ResponseHeader) {
	for revision := h.GetRevision(); ; {
		if before := s.seen.Load(); before >= revision || s.seen.CompareAndSwap(before, revision) {
			return
		}
	}
}

// Leave stops using a member, and tries it last in the future.
func (s *Members) Leave(m *Member) {
	s.choosing <- struct{}{}
	defer func() { <-s.choosing }()
	if s.current.Load() != m || m == nil {
		return
	}
	s.replaceLocked(nil)
	s.order = append(slices.DeleteFunc(s.order, func(e string) bool { return e == m.endpoint }), m.endpoint)
}

// replaceLocked replaces the member in use, and closes the previous member. It moves the new member
// to the front of order.
func (s *Members) replaceLocked(m *Member) {
	if before := s.current.Swap(m); before != nil && before != m {
		before.close()
	}
	if m != nil {
		i := slices.Index(s.order, m.endpoint)
		s.order = slices.Insert(slices.Delete(s.order, i, i+1), 0, m.endpoint)
	}
}

// Reach returns the member in use. If no member is in use, or the member in use is doubted, it
// chooses a member.
func (s *Members) Reach(ctx context.Context, doubted *Member) (*Member, error) {
	if m := s.current.Load(); m != nil && m != doubted {
		return m, nil
	}
	select {
	case s.choosing <- struct{}{}:
		defer func() { <-s.choosing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m := s.current.Load(); m != nil && m != doubted {
		return m, nil
	}
	m, err := s.choose(ctx)
	if err == nil {
		s.replaceLocked(m)
	}
	return m, err
}

// doubtAfter is how long a request may be unanswered before members are tested. headStart is how
// long to wait for a member before the next member is also tested. They are limited to a quarter
// and an eighth of the request's remaining time.
const (
	doubtAfter = time.Second
	headStart  = 300 * time.Millisecond
)

// share returns d, or 1/part of ctx's remaining time if that is shorter.
func share(ctx context.Context, d time.Duration, part time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)/part)
	}
	return d
}

// Do runs an operation, and may repeat it. If the member in use fails or does not answer, it
// repeats the operation on another member. If the token has expired, it repeats the operation with
// a new token. If no member was reached, it returns [Unsent].
func (s *Members) Do(ctx context.Context, operation func(context.Context, *Member) error) error {
	var doubted *Member
	renewals := 0
	for tries := 0; ; tries++ {
		m, err := s.Reach(ctx, doubted)
		if err != nil {
			if err = Plain(err); tries == 0 {
				err = Unsent{err}
			}
			return err
		}
		err = s.guard(ctx, m, operation)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return cmp.Or(answered(err), ctx.Err())
		case s.config.ended(err) && s.config.Username != "" && renewals < 2:
			renewals++
			if err = s.guard(ctx, m, func(ctx context.Context, m *Member) error { return m.authenticate(ctx) }); err != nil && !Unreachable(err) {
				return err
			}
		case s.current.Load() != m: // another goroutine has already replaced the member
		case Unreachable(err):
			if doubted = m; tries > 0 {
				wake.Sleep(ctx, share(ctx, UsualTiming().pause(tries), 4))
			}
		default:
			return err
		}
	}
}

// lostAfter is the timeout for the first attempt of a write. While etcd has no leader, it drops
// writes without an answer. The timeout doubles with each attempt.
const lostAfter = 2 * time.Second

// write works like Do, for an operation that etcd may drop. The operation must be idempotent.
func (s *Members) write(ctx context.Context, operation func(context.Context, *Member) error) error {
	limit := share(ctx, lostAfter, 3)
	return s.Do(ctx, func(ctx context.Context, m *Member) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		limit *= 2
		return operation(ctx, m)
	})
}

// answered returns err if etcd has answered with it. It returns nil if the request ended without an
// answer.
func answered(err error) error {
	if code := status.Code(err); code == codes.Canceled || code == codes.DeadlineExceeded || code == codes.Unknown {
		return nil
	}
	return err
}

// guard runs an operation on a member. If there is no answer for doubtAfter, guard tests the
// members, and ends the operation if another member is chosen.
func (s *Members) guard(ctx context.Context, m *Member, operation func(context.Context, *Member) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var doubting sync.WaitGroup
	defer doubting.Wait()
	defer cancel()
	doubting.Go(func() {
		for pause := share(ctx, doubtAfter, 4); wake.Sleep(ctx, pause); pause *= 2 {
			if other, err := s.Reach(ctx, m); err == nil && other != m {
				cancel()
			}
		}
	})
	return operation(ctx, m)
}

// choose returns the first member that proves itself. It tests the member in use on its existing
// connection, then the other members, and finally the member in use on a new connection. It starts
// the next test when the earlier tests have failed, or after headStart.
func (s *Members) choose(ctx context.Context) (*Member, error) {
	pause := share(ctx, headStart, 8)
	ctx, cancel := context.WithCancel(ctx)
	r := race{Members: s, proofs: make(chan proof, 1+len(s.order)), candidates: slices.Clone(s.order)}
	defer r.end(cancel)
	if m := s.current.Load(); m != nil {
		r.candidates = append(r.candidates[1:], r.candidates[0])
		r.start(ctx, m)
	} else {
		r.next(ctx)
	}
	for r.pending > 0 || len(r.candidates) > 0 {
		select {
		case p := <-r.proofs:
			if r.decide(p) {
				return r.result()
			}
			if undecided(p.err) {
				continue // otherwise the member would be tested again immediately
			}
		case <-time.After(pause):
			if r.best.Member != nil && len(r.candidates) == 0 {
				return r.result() // the member is behind, but no other member has answered
			}
		}
		r.next(ctx)
	}
	return r.result()
}

// race is a choice of a member in progress. Only one goroutine may use it.
type race struct {
	*Members
	candidates []string // not tested yet
	proofs     chan proof
	proving    sync.WaitGroup
	pending    int
	best       proof
	failed     error
}

// proof is the result of testing a member.
type proof struct {
	*Member
	revision int64
	err      error
}

// next starts to test the next candidate, if there is one.
func (r *race) next(ctx context.Context) {
	if len(r.candidates) == 0 {
		return
	}
	m, err := r.config.open(r.candidates[0])
	r.candidates = r.candidates[1:]
	if err != nil {
		r.pending++
		r.proofs <- proof{err: err}
		return
	}
	m.use(r.current.Load())
	r.start(ctx, m)
}

func (r *race) start(ctx context.Context, m *Member) {
	r.pending++
	r.proving.Go(func() {
		revision, err := m.prove(ctx, r.key)
		r.proofs <- proof{m, revision, err}
	})
}

// decide processes a result, and reports whether it ends the race. The race ends when a member
// proves itself and is not behind, or when a result shows a mistake in the configuration.
func (r *race) decide(p proof) bool {
	r.pending--
	switch {
	case p.err != nil:
		r.discard(p.Member)
		if r.failed == nil || IsTimeout(r.failed) {
			r.failed = p.err
		}
		if undecided(p.err) {
			r.candidates = append(r.candidates, p.endpoint)
		}
		return p.Member == nil || Is(p.err, rpctypes.ErrAuthFailed)
	case r.best.Member != nil && p.revision <= r.best.revision:
		r.discard(p.Member)
		return false
	}
	worse := r.best.Member
	r.best = p
	r.discard(worse)
	return p.revision == 0 || p.revision >= r.seen.Load()
}

// result returns the best member. If this member is behind, etcd was restored, and the seen
// revision is reset.
func (r *race) result() (*Member, error) {
	if r.best.Member == nil {
		return nil, r.failed
	}
	if r.best.revision != 0 {
		r.seen.Store(r.best.revision)
	}
	return r.best.Member, nil
}

// end stops the tests, and closes the connections to all members that were not chosen.
func (r *race) end(cancel context.CancelFunc) {
	cancel()
	r.proving.Wait()
	close(r.proofs)
	for p := range r.proofs {
		r.discard(p.Member)
	}
}

// discard closes the connection to a member that is neither in use nor the best candidate. m may be
// nil.
func (r *race) discard(m *Member) {
	if m != nil && m != r.current.Load() && m != r.best.Member {
		m.close()
	}
}
