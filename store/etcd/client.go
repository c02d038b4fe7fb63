package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Client asks etcd for keys and carries out transactions. Its methods may be called by several goroutines at once.
type Client struct {
	config  Config
	keys    Keys
	members *members
}

// NewClient returns a client, which connects when it is first used. The error is one of the configuration.
func NewClient(c Config) (*Client, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	keys, err := NewKeys(c.Prefix)
	return &Client{config: c, keys: keys, members: newMembers(c, keys)}, err
}

// Close ends the connection. Another question makes another.
func (c *Client) Close() error {
	c.members.close()
	return nil
}

// patience bounds one question to etcd.
const patience = 10 * time.Second

// attempts carries out an operation: members.do or members.write.
type attempts func(context.Context, func(context.Context, *member) error) error

// do carries out an operation in time. What is the key or folder that it is about.
func (c *Client) do(ctx context.Context, what string, attempts attempts, operation func(context.Context, *member) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := attempts(ctx, operation)
	switch {
	case err == nil:
		return nil
	case is(err, rpctypes.ErrPermissionDenied):
		return &plainError{fmt.Sprintf("%s may not do that: its role has no right to %s", c.config.who(), what), err}
	case c.config.ended(err):
		return c.where(errors.New("its tokens end at once"))
	}
	return c.where(plain(err))
}

// unsent is why etcd was not asked at all.
type unsent struct{ error }

// Unwrap returns the reason.
func (u unsent) Unwrap() error { return u.error }

func (c *Client) where(err error) error {
	return fmt.Errorf("etcd at %s: %w", strings.Join(c.config.Endpoints, ", "), err)
}

// get asks for keys. It does not wait for members that are silent.
func (c *Client) get(ctx context.Context, request *etcdserverpb.RangeRequest) (answer *etcdserverpb.RangeResponse, err error) {
	err = c.do(ctx, string(request.Key), c.members.do, func(ctx context.Context, m *member) (err error) {
		answer, err = etcdserverpb.NewKVClient(m.conn()).Range(ctx, request, grpc.MaxCallRecvMsgSize(mostReceived))
		return err
	})
	c.members.saw(answer.GetHeader())
	return answer, err
}

// commit runs a transaction, and reports its revision and whether all of ifs were so.
func (c *Client) commit(ctx context.Context, what string, ifs []*etcdserverpb.Compare, then []*etcdserverpb.RequestOp) (revision int64, ok bool, err error) {
	answer, err := c.transact(ctx, what, &etcdserverpb.TxnRequest{Compare: ifs, Success: then})
	if err != nil {
		return 0, false, err
	}
	return answer.Header.Revision, answer.Succeeded, nil
}

// transact runs a transaction. If it is repeated because an answer was lost, and its conditions no longer hold because it was
// carried out, that is found by what it has written.
func (c *Client) transact(ctx context.Context, what string, request *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	answer, _, err := c.transactRepeated(ctx, what, request)
	return answer, err
}

// transactRepeated is transact, and also reports whether the transaction was repeated: if it is refused, it may still have been carried out,
// and changed by others since.
func (c *Client) transactRepeated(ctx context.Context, what string, request *etcdserverpb.TxnRequest) (
	answer *etcdserverpb.TxnResponse, repeated bool, err error,
) {
	tries := 0
	err = c.do(ctx, what, c.members.write, func(ctx context.Context, m *member) (err error) {
		kv := etcdserverpb.NewKVClient(m.conn())
		answer, err = kv.Txn(ctx, request, grpc.MaxCallRecvMsgSize(mostReceived))
		if tries++; err == nil && !answer.Succeeded && tries > 1 {
			answer, err = readBack(ctx, kv, request, answer)
		}
		return err
	})
	c.members.saw(answer.GetHeader())
	return answer, tries > 1, err
}

// readBack returns the answer to a transaction as if it were the first: its conditions do not hold now, but if all that it puts and
// deletes is so, it was carried out before. Of a transaction that puts nothing the revision is not known, so it stays refused.
func readBack(
	ctx context.Context, kv etcdserverpb.KVClient, request *etcdserverpb.TxnRequest, refused *etcdserverpb.TxnResponse,
) (*etcdserverpb.TxnResponse, error) {
	effects, first := effectsOf(request.Success)
	if first == nil {
		return refused, nil
	}
	answer, err := kv.Txn(ctx, &etcdserverpb.TxnRequest{Compare: effects, Success: first})
	if err != nil || !answer.Succeeded {
		return refused, err
	}
	for _, part := range answer.Responses {
		for _, kv := range part.GetResponseRange().GetKvs() {
			answer.Header.Revision = kv.ModRevision
		}
	}
	return answer, nil
}

// effectsOf returns conditions that hold after operations, and a request for the first key that is put. Deletions in nested transactions
// are not among them.
func effectsOf(ops []*etcdserverpb.RequestOp) (effects []*etcdserverpb.Compare, first []*etcdserverpb.RequestOp) {
	for _, op := range ops {
		if p := op.GetRequestPut(); p != nil {
			value := clientv3.Compare(clientv3.Value(string(p.Key)), "=", string(p.Value))
			effects = append(effects, value.GetCompare(), under(string(p.Key), p.Lease))
			if first == nil {
				first = []*etcdserverpb.RequestOp{read(&etcdserverpb.RangeRequest{Key: p.Key, KeysOnly: true})}
			}
		}
		if d := op.GetRequestDeleteRange(); d != nil {
			gone := clientv3.Compare(clientv3.Version(string(d.Key)).WithRange(string(d.RangeEnd)), "=", 0)
			effects = append(effects, gone.GetCompare())
		}
	}
	return effects[:min(len(effects), mostEffects)], first
}

// mostEffects is how many conditions are enough to recognize a transaction: etcd accepts 128.
const mostEffects = 100

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
