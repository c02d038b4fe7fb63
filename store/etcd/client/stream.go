package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/lib/wake"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// stream holds the watches of one attempt to follow etcd.
type stream struct {
	*Link
	watch etcdserverpb.Watch_WatchClient
	// wanted is the last revision that etcd has reported. proven is when the stream last had
	// reached that revision, in nanoseconds since began. While an answer is processed, proven is
	// the constant handing.
	began          time.Time
	wanted, proven atomic.Int64
	created        int
	// ready reports whether all watches exist. proxied reports whether a gRPC proxy has created
	// them. A proxy numbers watches itself, starting at 0. It does not answer requests for
	// progress, and such requests crash old proxies.
	ready, proxied atomic.Bool
	// size is the number of keys at the start of the attempt.
	size int64
}

const handing = -1

var errSilent = errors.New("the watch is silent, although etcd has newer revisions")

// follow opens the watches and sends changes until the stream ends.
func (l *Link) follow(ctx context.Context) error {
	// This option makes a member that has lost the other members end the stream instead of staying
	// silent.
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	reaching, stop := context.WithTimeout(ctx, l.timing.Call)
	m, err := l.members.Reach(reaching, nil)
	stop()
	if err != nil {
		return Plain(err)
	}
	watch, err := etcdserverpb.NewWatchClient(m.Conn()).Watch(ctx, grpc.MaxCallRecvMsgSize(maxReceived))
	if err != nil {
		return Plain(err)
	}
	s := &stream{Link: l, watch: watch, began: l.timing.Now(), size: total(l.scopes)}
	s.create()
	var asking sync.WaitGroup
	asking.Go(func() { cancel(s.ask(ctx, l.reread)) })
	if l.Inspects {
		asking.Go(func() { s.inspect(ctx) })
	}
	defer asking.Wait()
	defer cancel(nil)
	for {
		answer, err := watch.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				l.full = l.full || errors.Is(cause, errReread)
				if errors.Is(cause, errSilent) {
					l.members.Leave(m) // requests may already use another member
				}
				return cause
			}
			if l.members.current.Load() != m {
				return errMoved
			}
			return Plain(err)
		}
		before := s.proven.Swap(handing)
		if err := s.process(ctx, answer); err != nil {
			return err
		}
		if len(answer.Events) > 0 || answer.Header.GetRevision() >= s.wanted.Load() {
			before = s.now()
		}
		s.proven.Store(before)
	}
}

func (s *stream) now() int64 { return int64(s.timing.Now().Sub(s.began)) }

// create requests a watch for each scope that may be read. A watch's ID is its scope's index plus
// 1.
func (s *stream) create() {
	for i, f := range s.scopes {
		if f.denied {
			continue
		}
		create := &etcdserverpb.WatchCreateRequest{
			Key: []byte(f.Key), RangeEnd: []byte(f.End),
			StartRevision: f.next, ProgressNotify: true, Fragment: true, WatchId: int64(i + 1),
		}
		request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}
		if err := s.watch.Send(request); err != nil {
			return // Recv returns the reason
		}
		s.created--
	}
}

// ask requests etcd's revision at intervals. It returns the reason why the stream must end, or nil
// if the stream has ended.
func (s *stream) ask(ctx context.Context, reread time.Time) error {
	knock := s.began.Add(s.timing.CheckRights)
	behindProxy := s.timing.ProxyReread/2 + rand.N(s.timing.ProxyReread) + time.Duration(s.size)*rereadKey
	for {
		wake.Sleep(ctx, s.timing.Ask*9/10+rand.N(s.timing.Ask/5))
		proven, now := s.proven.Load(), s.timing.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case proven != handing && time.Duration(s.now()-proven) > s.timing.Silence:
			return errSilent
		case now.After(reread), s.proxied.Load() && now.After(s.began.Add(behindProxy)):
			return errReread
		case now.After(knock):
			if err := s.checkRights(ctx); err != nil {
				return err
			}
			knock = now.Add(s.timing.CheckRights)
		}
		if err := s.prove(ctx); err != nil {
			return err
		}
	}
}

// For each key, rereadKey is added to the interval between full reads behind a proxy, so a host
// reads at most 100 keys a second. These reads are needed because a proxy may silently lose a
// watch.
const rereadKey = 10 * time.Millisecond

// prove requests etcd's revision with a linearizable read, and then requests the progress of the
// watches. If the watches' member does not answer, the request moves to another member, which ends
// the stream. If no member answers, the stream becomes silent.
func (s *stream) prove(ctx context.Context) error {
	answer, err := s.get(ctx, s.timing.Call, &etcdserverpb.RangeRequest{Key: []byte(s.scopes[0].Key)})
	switch {
	case Forbidden(err):
		return errReread // a full reading reports the error
	case err != nil && !Unreachable(err):
		return Plain(err)
	case err != nil:
		return nil
	case answer.Header.ClusterId != s.History.Cluster || answer.Header.Revision < s.wanted.Load():
		return ErrHistoryChanged
	}
	s.wanted.Store(answer.Header.Revision)
	switch {
	case !s.ready.Load():
	case s.proxied.Load():
		if before := s.proven.Load(); before != handing {
			s.proven.CompareAndSwap(before, s.now())
		}
	default:
		_ = s.watch.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{ // Recv reports the error
			ProgressRequest: &etcdserverpb.WatchProgressRequest{},
		}})
	}
	return nil
}

// checkRights checks whether the user's permissions have changed since the full read. The watches
// do not show such changes: a watch stays open after its permission is revoked, and a denied watch
// is not granted later. If checkRights returns an error, the stream must end. It reads the key of
// the folder itself, which is cheap because this key can't exist.
func (s *stream) checkRights(ctx context.Context) error {
	for i := range s.scopes {
		f := &s.scopes[i] // f.next must not be read here, because another goroutine writes it
		request := &etcdserverpb.RangeRequest{Key: []byte(f.Key)}
		if f.denied {
			request.RangeEnd = []byte(f.End)
			request.CountOnly = true
			request.Serializable = true
		}
		_, err := s.get(ctx, s.timing.Call, request)
		if f.denied && err == nil || !f.denied && Forbidden(err) {
			return errReread
		}
		if Is(err, rpctypes.ErrAuthFailed) {
			return Plain(err)
		}
	}
	return nil
}

// process handles an answer of the watch stream.
func (s *stream) process(ctx context.Context, answer *etcdserverpb.WatchResponse) error {
	switch {
	case answer.Canceled:
		return s.canceled(answer)
	case answer.Created:
		if answer.WatchId == 0 {
			s.proxied.Store(true)
		}
		if s.created++; s.created == 0 {
			s.steady = true
			s.ready.Store(true)
			if !s.send(ctx, Message{Steady: true}) {
				return ctx.Err()
			}
		}
	case len(answer.Events) > 0:
		return s.processEvents(ctx, answer)
	case answer.Header.Revision < s.History.Revision:
		// A member that is behind reports a lower revision, and so does a member that has lost its
		// history.
		if err := s.verify(ctx); err != nil || s.full {
			return cmp.Or(err, fmt.Errorf("etcd went back from revision %d to %d", s.History.Revision, answer.Header.Revision))
		}
	default:
		if id := answer.WatchId; s.steady && !s.proxied.Load() && id > 0 && id <= int64(len(s.scopes)) {
			// The progress of a watch arrives in order with its events, unlike the answer to a
			// request.
			f := &s.scopes[id-1]
			f.next = max(f.next, answer.Header.Revision+1)
		}
	}
	return nil
}

func (s *stream) canceled(answer *etcdserverpb.WatchResponse) error {
	if answer.CompactRevision > 0 {
		s.full = true
		return fmt.Errorf("the changes since revision %d were compacted", s.History.Revision)
	}
	reason := cmp.Or(answer.CancelReason, "etcd ended the watch")
	err := s.config.Denied(Plain(errors.New(reason)), "read", s.keys.Prefix)
	// Some versions send no ID for a denied watch. A full read finds out which watch it is, and
	// whether it is required.
	s.full = s.full || strings.Contains(reason, "permission denied")
	return err
}

// holding returns the scope that contains a key, or nil.
func (s *stream) holding(key string) *followed {
	for i := range s.scopes {
		if s.scopes[i].Holds(key) {
			return &s.scopes[i]
		}
	}
	return nil
}

// processEvents sends changes, and records the progress of their scope and of the history.
func (s *stream) processEvents(ctx context.Context, answer *etcdserverpb.WatchResponse) error {
	last := answer.Events[len(answer.Events)-1].Kv.ModRevision
	f := s.holding(string(answer.Events[0].Kv.Key))
	for _, e := range answer.Events {
		switch {
		case f == nil:
		case e.Type == mvccpb.DELETE:
			f.count--
		case e.Kv.CreateRevision == e.Kv.ModRevision:
			f.count++
		}
	}
	if f != nil {
		if !f.Optional() {
			s.History.Follow(last, answer.Events)
		}
		f.next = last
		if !answer.Fragment {
			f.next = last + 1
		}
	}
	s.History.Follow(last, nil)
	if !s.send(ctx, Message{Events: answer.Events, Revision: last}) {
		return ctx.Err()
	}
	if n := total(s.scopes); n > s.timing.MaxKeys {
		s.full = true
		return s.tooMany(n)
	}
	return nil
}
