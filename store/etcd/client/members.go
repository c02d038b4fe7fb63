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

// Members uses one member of etcd at a time: the first that proves that it has not lost the others.
// If a request stays unanswered, the members prove themselves again, and the first that answers is
// used. Watches on the former member end. Methods may be called by several goroutines.
type Members struct {
	config Config
	// key is the key that members read to prove themselves. It need not exist.
	key string
	// seen is the highest revision that etcd has reported. A member with a lower one has another
	// history, and is the last choice.
	seen atomic.Int64

	current  atomic.Pointer[Member] // nil means the next request chooses
	choosing chan struct{}          // of one place, held while a member is chosen or given up
	order    []string               // the endpoints, the one in use first; guarded by choosing
}

// errMoved ends requests and watches on a member that has lost the others.
var errMoved = errors.New("the member of etcd in use stopped answering: moved to another one")

// NewMembers returns members that connect when one is first used.
func NewMembers(c Config, keys schema.Keys) *Members {
	s := &Members{config: c, key: keys.Prefix + schema.ServiceFolder, choosing: make(chan struct{}, 1), order: slices.Clone(c.Endpoints)}
	rand.Shuffle(len(s.order), func(i, j int) { s.order[i], s.order[j] = s.order[j], s.order[i] })
	return s
}

// Close ends the connection. The next request makes another.
func (s *Members) Close() {
	s.choosing <- struct{}{}
	defer func() { <-s.choosing }()
	s.replaceLocked(nil)
}

// noteRevision notes the revision of an answer.
func (s *Members) noteRevision(h *etcdserverpb.ResponseHeader) {
	for revision := h.GetRevision(); ; {
		if before := s.seen.Load(); before >= revision || s.seen.CompareAndSwap(before, revision) {
			return
		}
	}
}

// Leave stops using a member, which becomes the last choice.
func (s *Members) Leave(m *Member) {
	s.choosing <- struct{}{}
	defer func() { <-s.choosing }()
	if s.current.Load() != m || m == nil {
		return
	}
	s.replaceLocked(nil)
	s.order = append(slices.DeleteFunc(s.order, func(e string) bool { return e == m.endpoint }), m.endpoint)
}

// replaceLocked replaces the member in use.
func (s *Members) replaceLocked(m *Member) {
	if before := s.current.Swap(m); before != nil && before != m {
		before.close()
	}
	if m != nil {
		i := slices.Index(s.order, m.endpoint)
		s.order = slices.Insert(slices.Delete(s.order, i, i+1), 0, m.endpoint)
	}
}

// Reach returns the member in use. If there is none, or it is doubted, it chooses one.
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

// doubtAfter is the time without an answer to a request after which members prove themselves.
// headStart is the time for which a member is awaited before the next member is also asked. They
// are limited to a quarter and an eighth of the time that the request has left.
const (
	doubtAfter = time.Second
	headStart  = 300 * time.Millisecond
)

// share returns a part of the time that ctx has left, d at most.
func share(ctx context.Context, d time.Duration, part time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)/part)
	}
	return d
}

// Do runs an operation, which may be repeated: on another member if the one in use fails or is
// silent, and with a new token if the old one has ended. The error is [Unsent] if no member was
// reached.
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
		case s.current.Load() != m: // requests to it have ended early
		case Unreachable(err):
			if doubted = m; tries > 0 {
				wake.Sleep(ctx, share(ctx, UsualTiming().pause(tries), 4))
			}
		default:
			return err
		}
	}
}

// lostAfter limits the first attempt of a write. etcd drops writes that it receives without a
// leader, and never answers them. Each further attempt may last twice as long.
const lostAfter = 2 * time.Second

// write is Do for an operation that etcd may drop. Repeating the operation must not change its
// effect.
func (s *Members) write(ctx context.Context, operation func(context.Context, *Member) error) error {
	limit := share(ctx, lostAfter, 3)
	return s.Do(ctx, func(ctx context.Context, m *Member) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		limit *= 2
		return operation(ctx, m)
	})
}

// answered returns an error that is an answer of etcd, and nil for the end of a request.
func answered(err error) error {
	if code := status.Code(err); code == codes.Canceled || code == codes.DeadlineExceeded || code == codes.Unknown {
		return nil
	}
	return err
}

// guard runs an operation on a member, and ends it when another member is chosen.
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

// choose returns the first member that proves itself. It asks the one in use on its connection,
// then the others, then that one on a new connection. Each is asked when the earlier ones have
// failed or were silent for a while.
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
				continue // lest it be asked again at once
			}
		case <-time.After(pause):
			if r.best.Member != nil && len(r.candidates) == 0 {
				return r.result() // it is behind, and no other has answered
			}
		}
		r.next(ctx)
	}
	return r.result()
}

// race is one choice of a member. It belongs to one goroutine.
type race struct {
	*Members
	candidates []string // not asked yet
	proofs     chan proof
	proving    sync.WaitGroup
	pending    int
	best       proof
	failed     error
}

// proof is the answer of a member.
type proof struct {
	*Member
	revision int64
	err      error
}

// next asks the next candidate, if there is one.
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

// decide processes an answer, and reports whether it ends the race. A member that is not behind
// does, and so does a mistake in the configuration.
func (r *race) decide(p proof) bool {
	r.pending--
	switch {
	case p.err != nil:
		r.discard(p.Member)
		if r.failed == nil || Late(r.failed) {
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

// result returns the best member. If that is behind, etcd was restored, and the seen revision no
// longer counts.
func (r *race) result() (*Member, error) {
	if r.best.Member == nil {
		return nil, r.failed
	}
	if r.best.revision != 0 {
		r.seen.Store(r.best.revision)
	}
	return r.best.Member, nil
}

// end closes the connections of the losers.
func (r *race) end(cancel context.CancelFunc) {
	cancel()
	r.proving.Wait()
	close(r.proofs)
	for p := range r.proofs {
		r.discard(p.Member)
	}
}

// discard closes a connection that is not used.
func (r *race) discard(m *Member) {
	if m != nil && m != r.current.Load() && m != r.best.Member {
		m.close()
	}
}
