package etcd

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

	"vipd/balancer/wake"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// stream is the watches of one attempt.
type stream struct {
	*link
	watch etcdserverpb.Watch_WatchClient
	// heard is when something came last, in nanoseconds since began; handing while it is being handed over.
	began   time.Time
	heard   atomic.Int64
	created int
	// order are the places of the scopes that are watched. server is who numbers the watches.
	order  []int
	server atomic.Int32
	seen   atomic.Pointer[seen]
}

const handing = -1

var errSilent = errors.New("the watch is silent: not even progress is reported")

// follow opens the watches and tells what changes, until that ends.
func (l *link) follow(ctx context.Context) error {
	// A member that has lost the others ends the stream, instead of saying nothing.
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	client := etcdserverpb.NewWatchClient(l.client.ActiveConnection())
	watch, err := client.Watch(ctx, grpc.MaxCallRecvMsgSize(mostReceived))
	if err != nil {
		return plain(err)
	}
	s := &stream{link: l, watch: watch, began: l.timing.now()}
	s.create()
	var asking sync.WaitGroup
	asking.Go(func() { cancel(s.ask(ctx, l.reread)) })
	defer asking.Wait()
	defer cancel(nil)
	for {
		answer, err := watch.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				l.full = l.full || errors.Is(cause, errReread) || errors.Is(cause, errLost)
				return cause
			}
			return plain(err)
		}
		s.heard.Store(handing)
		if err := s.take(ctx, answer); err != nil {
			return err
		}
		s.remember()
		s.hear()
	}
}

// hear notes that the stream lives.
func (s *stream) hear() { s.heard.Store(int64(s.timing.now().Sub(s.began))) }

// create asks for a watch of each scope that may be read. Its ID is the place of the scope, from 1.
//
// After a silent attempt the watches of folders begin at another key, below all that can be in them. A proxy watches equal ranges
// once for all its clients: one that has lost such a watch, as it does when the token of the client that came first has ended
// while etcd restarts, goes on giving it to whoever asks for this range, and drops it only when nobody does.
func (s *stream) create() {
	for i, f := range s.scopes {
		if f.denied {
			continue
		}
		key := f.key
		if f.end != "" {
			key += strings.Repeat("\x00", s.apart)
		}
		create := &etcdserverpb.WatchCreateRequest{
			Key: []byte(key), RangeEnd: []byte(f.end),
			StartRevision: f.next, ProgressNotify: true, Fragment: true, WatchId: int64(i + 1),
		}
		request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}
		if err := s.watch.Send(request); err != nil {
			return // Recv says why
		}
		s.created--
		s.order = append(s.order, i)
	}
}

// ask requests progress now and then, and returns why the stream should end; nil means it has ended.
func (s *stream) ask(ctx context.Context, reread time.Time) error {
	request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
		ProgressRequest: &etcdserverpb.WatchProgressRequest{},
	}}
	knock := s.began.Add(s.timing.knock)
	survey := survey{due: s.began.Add(s.timing.survey/2 + rand.N(s.timing.survey))}
	for {
		wake.Sleep(ctx, s.timing.ask*3/4+rand.N(s.timing.ask/2))
		heard, now := s.heard.Load(), s.timing.now()
		switch {
		case ctx.Err() != nil:
			return nil
		case heard != handing && now.Sub(s.began)-time.Duration(heard) > s.timing.silence:
			return errSilent
		case now.After(reread):
			return errReread
		case now.After(knock):
			if err := s.knock(ctx); err != nil {
				return err
			}
			knock = now.Add(s.timing.knock)
		}
		switch s.server.Load() {
		case member:
			if err := s.watch.Send(request); err != nil {
				return nil // Recv says why
			}
		case proxy:
			err := s.probe(ctx, heard)
			if err == nil {
				err = s.survey(ctx, &survey)
			}
			if err != nil {
				return err
			}
		}
	}
}

// knock asks whether the rights are still what they were when all was read: a watch goes on when they are taken away, and
// one that was denied is not granted later. The error is why the stream should end. It asks for the key of the folder itself,
// which costs nothing, and which can't exist.
func (s *stream) knock(ctx context.Context) error {
	client := s.client
	for i := range s.scopes {
		f := &s.scopes[i] // whose next the other goroutine writes
		request := &etcdserverpb.RangeRequest{Key: []byte(f.key)}
		if f.denied {
			request.RangeEnd, request.CountOnly, request.Serializable = []byte(f.end), true, true
		}
		_, err := s.get(ctx, client, s.timing.call, request)
		if s.config.ended(err) && client == s.client {
			// The token has ended, which a watch does not notice. So may the user have.
			fresh, failed := s.config.open(ctx)
			if is(failed, rpctypes.ErrAuthFailed) {
				return failed
			}
			if failed != nil {
				return nil // where etcd does not answer, the stream finds out by itself
			}
			defer func() { _ = fresh.Close() }() // nothing is left to be done about it
			client = fresh
			_, err = s.get(ctx, client, s.timing.call, request)
		}
		if f.denied && err == nil || !f.denied && Forbidden(err) {
			return errReread
		}
	}
	return nil
}

// take handles one answer.
func (s *stream) take(ctx context.Context, answer *etcdserverpb.WatchResponse) error {
	switch {
	case answer.Canceled:
		return s.canceled(answer)
	case answer.Created:
		s.number(answer.WatchId)
		if s.created++; s.created == 0 {
			s.steady = true
			if !s.tell(ctx, message{steady: true}) {
				return ctx.Err()
			}
		}
	case len(answer.Events) > 0:
		return s.takeEvents(ctx, answer)
	case answer.Header.Revision < s.revision:
		// Progress of a member that is behind, or of one that has lost what there was.
		if err := s.verify(ctx); err != nil || s.full {
			return errors.Join(err, fmt.Errorf("etcd went back from revision %d to %d", s.revision, answer.Header.Revision))
		}
	default:
		if f := s.watched(answer.WatchId); f != nil {
			// A watch's own notice comes in order with its events, other than the answer to a request.
			f.next = max(f.next, answer.Header.Revision+1)
		}
	}
	return nil
}

func (s *stream) canceled(answer *etcdserverpb.WatchResponse) error {
	if answer.CompactRevision > 0 {
		s.full = true
		return fmt.Errorf("what changed since revision %d is compacted", s.revision)
	}
	reason := cmp.Or(answer.CancelReason, "etcd ended the watch")
	err := s.config.denied(plain(errors.New(reason)), "read", s.keys.prefix)
	// Denied watches have no ID in some versions: reading all anew finds out which it is, and whether it is needed.
	s.full = s.full || strings.Contains(reason, "permission denied")
	return err
}

// takeEvents hands changes over.
func (s *stream) takeEvents(ctx context.Context, answer *etcdserverpb.WatchResponse) error {
	last := answer.Events[len(answer.Events)-1].Kv.ModRevision
	f := s.holding(string(answer.Events[0].Kv.Key))
	for _, e := range answer.Events {
		switch {
		case f == nil:
		case e.Type == mvccpb.DELETE:
			f.count--
			if string(e.Kv.Key) == s.marker {
				s.marker = ""
			}
		default:
			if e.Kv.CreateRevision == e.Kv.ModRevision {
				f.count++
			}
			if !f.optional() {
				s.marker, s.marked = string(e.Kv.Key), e.Kv.ModRevision
			}
		}
	}
	if f != nil {
		f.next = last
		if !answer.Fragment {
			f.next = last + 1
		}
	}
	s.revision = max(s.revision, last)
	if !s.tell(ctx, message{events: answer.Events, revision: last}) {
		return ctx.Err()
	}
	if n := total(s.scopes); n > s.timing.mostKeys {
		s.full = true
		return s.tooMany(n)
	}
	return nil
}
