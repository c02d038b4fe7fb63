package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/store/etcd/schema"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// Link owns the connection. It reads and follows folders, detects a broken connection, and sends
// messages in order.
type Link struct {
	config  Config
	keys    schema.Keys
	log     *slog.Logger
	timing  Timing
	out     chan<- Message
	members *Members
	// Inspects reports whether the link also tests the members that are not in use.
	Inspects bool

	// full is set if everything must be read. another is set if etcd has another history than
	// before.
	full, another bool
	// History is the known history of etcd. It may be set before Run.
	History History
	// scopes lists the folders and keys that the link reads and follows.
	scopes []followed
	// steady reports whether the current attempt follows all scopes. reread is when everything will
	// be read again.
	steady bool
	reread time.Time
}

// followed is a scope and its progress.
type followed struct {
	Scope
	// next is the revision from which the scope's watch resumes. count is the scope's number of
	// keys.
	next, count int64
	// denied is set if the user may not read the scope, which is then skipped.
	denied bool
}

func total(scopes []followed) (n int64) {
	for i := range scopes {
		n += scopes[i].count
	}
	return n
}

// RefillTime is how long no service may be added before the services in another history count as
// complete.
const RefillTime = 30 * time.Second

// Timing holds the intervals of a connection. Tests shorten them.
type Timing struct {
	// Now is the clock. Its monotonic part measures time, so a jump of the wall clock does not look
	// like an outage.
	Now func() time.Time
	// ErrorPause is the minimum time between published errors about the same outage.
	ErrorPause time.Duration
	// Ask is the interval of requests for etcd's revision. Silence is how long a stream may lag
	// behind that revision.
	Ask, Silence time.Duration
	// Call is the timeout of a request. Page is the timeout for reading a page.
	Call, Page time.Duration
	// Jitter is the maximum pause before the first retry. It doubles with each retry, up to
	// Slowest.
	Jitter, Slowest time.Duration
	// Reread is the interval between full reads, which are only a precaution. CheckRights is the
	// interval between checks of the user's permissions.
	Reread, CheckRights time.Duration
	// ProxyReread is the interval between full reads of all keys if etcd is behind a proxy and has
	// few keys.
	ProxyReread time.Duration
	// Refill is how long no service may be added before the services in another history count as
	// complete. The total wait is at most LongestRefill.
	Refill, LongestRefill time.Duration
	// PageKeys is the number of keys in a page. Small pages cost etcd much more, because etcd
	// counts all remaining keys each time.
	PageKeys int64
	// MaxKeys is the maximum total number of keys.
	MaxKeys int64
}

// UsualTiming returns the default intervals.
func UsualTiming() Timing {
	return Timing{
		Now: time.Now, Ask: 5 * time.Second, Silence: 9 * time.Second, Call: 5 * time.Second, Page: 30 * time.Second,
		Jitter: 500 * time.Millisecond, Slowest: 5 * time.Second, ErrorPause: 2 * time.Second, Reread: time.Hour, CheckRights: time.Minute, ProxyReread: 2 * time.Minute, Refill: RefillTime, LongestRefill: 10 * time.Minute, PageKeys: 5000, MaxKeys: schema.MaxKeys,
	}
}

// NewLink returns a link that sends its messages to out.
func NewLink(c Config, keys schema.Keys, scopes []Scope, t Timing, log *slog.Logger, out chan<- Message) *Link {
	l := &Link{config: c, members: NewMembers(c, keys), keys: keys, log: log, timing: t, out: out}
	for _, s := range scopes {
		l.scopes = append(l.scopes, followed{Scope: s})
	}
	return l
}

// Message is a message that a link sends to its user. Only one of its parts is set.
type Message struct {
	// Begin and End enclose the pages of a full read. Page is one of these pages. Revision is the
	// revision of the read or of the events.
	Begin, End bool
	Page       []*mvccpb.KeyValue
	Events     []*mvccpb.Event
	Revision   int64
	// The message with End also has these fields: Denied lists the scopes that the user may not
	// read. Cluster is the ID of etcd's cluster. Another reports whether etcd has another history
	// than before.
	Denied  []Scope
	Cluster uint64
	Another bool
	// Steady reports that all watches are open and no change was missed. Away is the reason why
	// this is no longer true.
	Steady bool
	Away   error
	// Members lists problems about failed etcd members. It is nil if the message is not about
	// members.
	Members []balancer.Problem
}

// errReread ends an attempt because everything must be read again. It is not a failure.
var errReread = errors.New("it is time to read everything again")

// Run connects, and reconnects after each failure, until ctx ends.
func (l *Link) Run(ctx context.Context) {
	defer l.members.Close()
	l.full = true
	for failures := 0; ctx.Err() == nil; {
		l.steady = false
		err := l.attempt(ctx)
		if ctx.Err() != nil || errors.Is(err, errReread) {
			continue
		}
		if l.steady {
			failures = 0
		}
		l.log.Debug("lost etcd", "err", err, "steady", l.steady)
		if errors.Is(err, errSilent) {
			l.full = l.full || !l.steady // a proxy that is stuck creates no watches, but answers reads
		}
		if moved := l.steady && errors.Is(err, errMoved); !moved && !l.send(ctx, Message{Away: err}) { // a move to another member takes little time
			return
		}
		if !l.steady {
			l.members.Close() // the next connection reads files and names again
		}
		wake.Sleep(ctx, l.timing.pause(failures))
		failures++
	}
}

// pause returns how long to wait after the given number of failures. It is random, so hosts do not
// reconnect simultaneously.
func (t Timing) pause(failures int) time.Duration {
	longest := min(t.Jitter<<min(failures, 10), t.Slowest)
	shortest := longest / 2
	if failures == 0 {
		shortest = 0
	}
	return shortest + rand.N(longest-shortest+1)
}

// send sends a message, unless ctx ends.
func (l *Link) send(ctx context.Context, m Message) bool {
	select {
	case l.out <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt reads the missing data, and follows changes until that fails. It returns the reason.
func (l *Link) attempt(ctx context.Context) error {
	if l.History.Revision != 0 {
		if err := l.verify(ctx); err != nil {
			return err
		}
	}
	if l.full {
		if err := l.readAll(ctx); err != nil {
			return err
		}
	}
	return l.follow(ctx)
}

// get reads keys with a linearizable read.
func (l *Link) get(ctx context.Context, limit time.Duration, request *etcdserverpb.RangeRequest) (answer *etcdserverpb.RangeResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = l.members.Do(ctx, func(ctx context.Context, m *Member) (err error) {
		answer, err = etcdserverpb.NewKVClient(m.Conn()).Range(ctx, request, grpc.MaxCallRecvMsgSize(maxReceived))
		return err
	})
	l.members.noteRevision(answer.GetHeader())
	return answer, err
}

// verify checks whether etcd still has the known history. If not, everything will be read again.
func (l *Link) verify(ctx context.Context) error {
	h := l.History
	h.Revision = max(h.Revision, l.known())
	compacted, err := h.Verify(ctx, l.scopes[0].Key, func(ctx context.Context, request *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
		return l.get(ctx, l.timing.Call, request)
	})
	switch {
	case errors.Is(err, ErrHistoryChanged):
		l.full, l.another = true, true
		l.log.Warn("reading everything again", "err", err, "rev", h.Revision)
	case err != nil:
		return l.config.Denied(Plain(err), "read", l.scopes[0].Key)
	case compacted:
		l.full = true
	}
	return nil
}

// known returns the revision up to which the state of all scopes is known.
func (l *Link) known() int64 {
	known := l.scopes[0].next - 1
	for _, s := range l.scopes {
		if !s.denied {
			known = min(known, s.next-1)
		}
	}
	return known
}

// readAll reads everything at one revision.
func (l *Link) readAll(ctx context.Context) error {
	began := l.timing.Now()
	r := reading{Link: l, limit: l.timing.PageKeys}
	var denied []Scope
	for i := range l.scopes {
		s := &l.scopes[i]
		before := r.total
		err := r.scope(ctx, s.Scope)
		if s.denied = s.Optional() && Forbidden(err); s.denied {
			denied = append(denied, s.Scope)
		} else if err != nil {
			return l.config.Denied(err, "read", s.Key)
		}
		s.next, s.count = r.seen.Revision+1, r.total-before
	}
	l.another = l.another || !l.History.continues(r.seen.Cluster, r.seen.Revision) // etcd was replaced after verify
	l.full, l.History = false, r.seen
	l.reread = began.Add(l.timing.Reread*4/5 + rand.N(l.timing.Reread*2/5+1))
	l.log.Debug("read all of etcd", "rev", r.seen.Revision, "keys", r.total, "took", l.timing.Now().Sub(began))
	if !l.send(ctx, Message{End: true, Revision: r.seen.Revision, Denied: denied, Cluster: r.seen.Cluster, Another: l.another}) {
		return ctx.Err()
	}
	l.another = false
	return nil
}

// reading is a full read in progress.
type reading struct {
	*Link
	limit int64
	total int64
	seen  History // if the revision is 0, the first page determines it
}

// scope reads a scope, and sends its keys in pages.
func (r *reading) scope(ctx context.Context, s Scope) error {
	first := true
	ask := func(ctx context.Context, request *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
		answer, err := r.get(ctx, r.timing.Page, request)
		return answer, Plain(err)
	}
	return ReadScope(ctx, ask, s, &r.limit, &r.seen.Revision, func(answer *etcdserverpb.RangeResponse) error {
		if r.seen.Cluster == 0 {
			r.seen.Cluster = answer.Header.ClusterId
			if !r.send(ctx, Message{Begin: true, Revision: r.seen.Revision}) {
				return ctx.Err()
			}
		}
		if first {
			if r.total += answer.Count; r.total > r.timing.MaxKeys {
				return r.tooMany(r.total)
			}
		}
		first = false
		if !s.Optional() { // a scope that the user can certainly read
			for _, kv := range answer.Kvs {
				r.seen.Note(kv)
			}
		}
		if len(answer.Kvs) > 0 && !r.send(ctx, Message{Page: answer.Kvs}) {
			return ctx.Err()
		}
		return nil
	})
}

func (l *Link) tooMany(n int64) error {
	return fmt.Errorf("there are %d keys below %s; at most %d are allowed", n, l.keys.Prefix, l.timing.MaxKeys)
}

// LeaseAnswer is the state of a lease.
type LeaseAnswer int

const (
	LeaseUnknown LeaseAnswer = iota
	LeaseLives
	LeaseEnded
)

// AskLeases returns the state of each lease, in order. If etcd does not answer, the remaining
// states are unknown.
func (l *Link) AskLeases(ctx context.Context, ids []int64) []LeaseAnswer {
	answers, known := make([]LeaseAnswer, len(ids)), map[int64]LeaseAnswer{}
	for i, id := range ids {
		answer, asked := known[id]
		if !asked {
			var err error
			if answer, err = l.lease(ctx, id); err != nil && Unreachable(err) {
				return answers
			}
			known[id] = answer
		}
		answers[i] = answer
	}
	return answers
}

// lease returns the state of a lease. If it returns an error, the state is unknown.
func (l *Link) lease(ctx context.Context, id int64) (answer LeaseAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timing.Call)
	defer cancel()
	err = l.members.Do(ctx, func(ctx context.Context, m *Member) error {
		answer, err = timeToLive(ctx, m, id)
		return err
	})
	return answer, err
}

func timeToLive(ctx context.Context, m *Member, id int64) (LeaseAnswer, error) {
	answer, err := etcdserverpb.NewLeaseClient(m.Conn()).LeaseTimeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: id})
	switch {
	case Is(err, rpctypes.ErrLeaseNotFound), err == nil && answer.TTL <= 0:
		return LeaseEnded, nil
	case err != nil:
		return LeaseUnknown, err
	}
	return LeaseLives, nil
}
