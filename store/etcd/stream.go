package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// stream is the watches of one attempt.
type stream struct {
	*link
	watch etcdserverpb.Watch_WatchClient
	// heard is when something came last, in nanoseconds since 1970; 0 while it is being handed over.
	heard   atomic.Int64
	created int
}

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
	s := &stream{link: l, watch: watch}
	for i, folder := range l.keys.folders() {
		create := &etcdserverpb.WatchCreateRequest{
			Key: []byte(folder), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(folder)),
			StartRevision: l.next[i], ProgressNotify: true, Fragment: true, WatchId: int64(i + 1),
		}
		request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}
		if err := watch.Send(request); err != nil {
			break // Recv says why
		}
	}
	s.heard.Store(time.Now().UnixNano())
	var asking sync.WaitGroup
	asking.Go(func() { cancel(s.ask(ctx, l.reread)) })
	defer asking.Wait()
	defer cancel(nil)
	for {
		answer, err := watch.Recv()
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, errSilent) || errors.Is(cause, errReread) {
				l.full = l.full || errors.Is(cause, errReread)
				return cause
			}
			return plain(err)
		}
		s.heard.Store(0)
		if err := s.take(ctx, answer); err != nil {
			return err
		}
		s.heard.Store(time.Now().UnixNano())
	}
}

// ask requests progress now and then, and returns why the stream should end; nil: it has ended.
func (s *stream) ask(ctx context.Context, reread time.Time) error {
	request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
		ProgressRequest: &etcdserverpb.WatchProgressRequest{},
	}}
	for {
		sleep(ctx, s.timing.ask*3/4+rand.N(s.timing.ask/2))
		heard := s.heard.Load()
		switch {
		case ctx.Err() != nil:
			return nil
		case heard != 0 && time.Since(time.Unix(0, heard)) > s.timing.silence:
			return errSilent
		case time.Now().After(reread):
			return errReread
		}
		if err := s.watch.Send(request); err != nil {
			return nil // Recv says why
		}
	}
}

// take handles one answer.
func (s *stream) take(ctx context.Context, answer *etcdserverpb.WatchResponse) error {
	switch {
	case answer.Canceled:
		return s.canceled(answer)
	case answer.Created:
		if s.created++; s.created == len(s.next) {
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
	case answer.WatchId > 0 && int(answer.WatchId) <= len(s.next):
		// A watch's own notice comes in order with its events, other than the answer to a request.
		s.next[answer.WatchId-1] = max(s.next[answer.WatchId-1], answer.Header.Revision+1)
	}
	return nil
}

func (s *stream) canceled(answer *etcdserverpb.WatchResponse) error {
	if answer.CompactRevision > 0 {
		s.full = true
		return fmt.Errorf("what changed since revision %d is compacted", s.revision)
	}
	reason := answer.CancelReason
	if reason == "" {
		reason = "etcd ended the watch"
	}
	// Denied watches have no ID in some versions: all three would be denied alike.
	return s.config.denied(plain(errors.New(reason)), s.keys.prefix)
}

// takeEvents hands changes over.
func (s *stream) takeEvents(ctx context.Context, answer *etcdserverpb.WatchResponse) error {
	last := answer.Events[len(answer.Events)-1].Kv.ModRevision
	for _, e := range answer.Events {
		switch {
		case e.Type == mvccpb.DELETE:
			s.total--
			if string(e.Kv.Key) == s.marker {
				s.marker = ""
			}
		default:
			if e.Kv.CreateRevision == e.Kv.ModRevision {
				s.total++
			}
			s.marker, s.marked = string(e.Kv.Key), e.Kv.ModRevision
		}
	}
	if i := answer.WatchId - 1; i >= 0 && int(i) < len(s.next) {
		s.next[i] = last
		if !answer.Fragment {
			s.next[i] = last + 1
		}
	}
	s.revision = max(s.revision, last)
	if !s.tell(ctx, message{events: answer.Events, revision: last}) {
		return ctx.Err()
	}
	if s.total > MaxKeys {
		s.full = true
		return tooMany(s.total, s.keys)
	}
	return nil
}
