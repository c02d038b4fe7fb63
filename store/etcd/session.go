package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"vipd/balancer/wake"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Writer writes services and what belongs to them, and reads what there is. Each service is one transaction. Its
// methods may be called by several goroutines at once.
type Writer struct {
	config Config
	keys   Keys

	opening chan struct{} // of one place, taken while client is used or made: to make one takes as long as etcd does
	client  *clientv3.Client

	newestMu sync.Mutex // guards found
	found    found

	bookMu sync.Mutex // guards book
	book   *book      // nil means it has to be read

	slotMu sync.Mutex          // guards slots
	slots  map[string]ownSpell // of claims that this writer has written
}

// NewWriter returns a writer, which connects when it is first used. The error is one of the configuration.
func NewWriter(c Config) (*Writer, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	keys, err := NewKeys(c.Prefix)
	return &Writer{config: c, keys: keys, opening: make(chan struct{}, 1)}, err
}

// Close ends the connection. Another question makes another.
func (w *Writer) Close() error {
	w.opening <- struct{}{}
	defer func() { <-w.opening }()
	if w.client == nil {
		return nil
	}
	err := w.client.Close()
	w.client = nil
	return err
}

// patience bounds one question to etcd.
const patience = 10 * time.Second

// connection returns the client in use, or a new one in place of old.
func (w *Writer) connection(ctx context.Context, old *clientv3.Client) (*clientv3.Client, error) {
	select {
	case w.opening <- struct{}{}:
		defer func() { <-w.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if w.client != nil && w.client != old {
		return w.client, nil
	}
	if w.client != nil {
		_ = w.client.Close() // its token has ended, and nothing else is left of it
		w.client = nil
	}
	client, err := w.config.open(ctx)
	if err == nil {
		w.client = client
	}
	return client, err
}

// do runs one operation, again with a new token if the old one has ended, and while etcd elects a leader. What is the key or
// folder that it is about.
func (w *Writer) do(ctx context.Context, what string, operation func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var client *clientv3.Client
	for range 2 {
		var err error
		if client, err = w.connection(ctx, client); err != nil {
			return w.where(unsent{err})
		}
		for tries := 0; ; tries++ {
			if err = operation(ctx, client); !leaderless(err) {
				break
			}
			wake.Sleep(ctx, usualTiming().pause(tries))
			if ctx.Err() != nil {
				break
			}
		}
		if err == nil {
			return nil
		}
		if is(err, rpctypes.ErrPermissionDenied) {
			return &plainError{fmt.Sprintf("%s may not do that: its role has no right to %s", w.config.who(), what), err}
		}
		if !w.config.ended(err) {
			return w.where(plain(err))
		}
	}
	return w.where(errors.New("its tokens end at once"))
}

// unsent is why etcd was not asked at all.
type unsent struct{ error }

// Unwrap returns the reason.
func (u unsent) Unwrap() error { return u.error }

func (w *Writer) where(err error) error {
	return fmt.Errorf("etcd at %s: %w", strings.Join(w.config.Endpoints, ", "), err)
}

// get asks for keys. It does not wait for members that are silent.
func (w *Writer) get(ctx context.Context, request *etcdserverpb.RangeRequest) (answer *etcdserverpb.RangeResponse, err error) {
	err = w.do(ctx, string(request.Key), func(ctx context.Context, client *clientv3.Client) (err error) {
		answer, err = etcdserverpb.NewKVClient(client.ActiveConnection()).Range(ctx, request, grpc.MaxCallRecvMsgSize(mostReceived))
		return err
	})
	return answer, err
}

// commit runs a transaction, and reports its revision and whether all of ifs were so.
func (w *Writer) commit(ctx context.Context, what string, ifs []*etcdserverpb.Compare, then []*etcdserverpb.RequestOp) (revision int64, ok bool, err error) {
	answer, err := w.transact(ctx, what, &etcdserverpb.TxnRequest{Compare: ifs, Success: then})
	if err != nil {
		return 0, false, err
	}
	return answer.Header.Revision, answer.Succeeded, nil
}

// transact runs a transaction.
func (w *Writer) transact(ctx context.Context, what string, request *etcdserverpb.TxnRequest) (answer *etcdserverpb.TxnResponse, err error) {
	err = w.do(ctx, what, func(ctx context.Context, client *clientv3.Client) (err error) {
		answer, err = etcdserverpb.NewKVClient(client.ActiveConnection()).Txn(ctx, request, grpc.MaxCallRecvMsgSize(mostReceived))
		return err
	})
	return answer, err
}

// unchanged is the condition that a key was last changed at a revision; 0 means that it is not there.
func unchanged(key string, revision int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
	return c.GetCompare()
}

func put(key string, text []byte, lease int64) *etcdserverpb.RequestOp {
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{
		RequestPut: &etcdserverpb.PutRequest{Key: []byte(key), Value: text, Lease: lease},
	}}
}

func read(request *etcdserverpb.RangeRequest) *etcdserverpb.RequestOp {
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestRange{RequestRange: request}}
}

func remove(key string) *etcdserverpb.RequestOp { return removeRange(key, "") }

// removeAll removes all below a folder.
func removeAll(folder string) *etcdserverpb.RequestOp {
	return removeRange(folder, clientv3.GetPrefixRangeEnd(folder))
}

func removeRange(key, end string) *etcdserverpb.RequestOp {
	request := &etcdserverpb.DeleteRangeRequest{Key: []byte(key)}
	if end != "" {
		request.RangeEnd = []byte(end)
	}
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestDeleteRange{RequestDeleteRange: request}}
}
