package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"vipd/store/etcd/schema"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Client reads keys in etcd and runs transactions. Its methods are safe for concurrent use.
type Client struct {
	Config  Config
	Keys    schema.Keys
	Members *Members
}

// NewClient returns a client that connects when it is first used. It returns an error if the
// configuration is invalid.
func NewClient(c Config) (*Client, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	keys, err := schema.NewKeys(c.Prefix)
	return &Client{Config: c, Keys: keys, Members: NewMembers(c, keys)}, err
}

// Close closes the connection. The next request opens a new connection.
func (c *Client) Close() error {
	c.Members.Close()
	return nil
}

const requestTimeout = 10 * time.Second

// attempts is a method that runs an operation and may repeat it, such as Members.Do.
type attempts func(context.Context, func(context.Context, *Member) error) error

// Do runs an operation with requestTimeout. The parameter what is the operation's key or folder,
// for errors.
func (c *Client) Do(ctx context.Context, what string, attempts attempts, operation func(context.Context, *Member) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := attempts(ctx, operation)
	switch {
	case err == nil:
		return nil
	case Is(err, rpctypes.ErrPermissionDenied):
		return &plainError{fmt.Sprintf("%s may not do that: its role has no permission for %s", c.Config.Who(), what), err}
	case c.Config.ended(err):
		return c.where(errors.New("its tokens expire immediately"))
	}
	return c.where(Plain(err))
}

// Unsent is an error that prevented a request from being sent to etcd.
type Unsent struct{ error }

// Unwrap returns the reason.
func (u Unsent) Unwrap() error { return u.error }

func (c *Client) where(err error) error {
	return fmt.Errorf("etcd at %s: %w", strings.Join(c.Config.Endpoints, ", "), err)
}

// Get reads keys. It does not wait for unresponsive members.
func (c *Client) Get(ctx context.Context, request *etcdserverpb.RangeRequest) (answer *etcdserverpb.RangeResponse, err error) {
	err = c.Do(ctx, string(request.Key), c.Members.Do, func(ctx context.Context, m *Member) (err error) {
		answer, err = etcdserverpb.NewKVClient(m.Conn()).Range(ctx, request, grpc.MaxCallRecvMsgSize(maxReceived))
		return err
	})
	c.Members.noteRevision(answer.GetHeader())
	return answer, err
}

// Commit runs a transaction. It returns the revision of the transaction, and whether all conditions
// in ifs held.
func (c *Client) Commit(ctx context.Context, what string, ifs []*etcdserverpb.Compare, then []*etcdserverpb.RequestOp) (revision int64, ok bool, err error) {
	answer, err := c.Transact(ctx, what, &etcdserverpb.TxnRequest{Compare: ifs, Success: then})
	if err != nil {
		return 0, false, err
	}
	return answer.Header.Revision, answer.Succeeded, nil
}

// Transact runs a transaction. If the answer is lost, it runs the transaction again. If the
// conditions then no longer hold, it finds out whether the first attempt succeeded, by comparing
// the transaction's values with the values in etcd.
func (c *Client) Transact(ctx context.Context, what string, request *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	answer, _, err := c.TransactRepeated(ctx, what, request)
	return answer, err
}

// TransactRepeated works like [Client.Transact], and also reports whether the transaction ran
// again. If the repeated transaction is refused, the first attempt may have succeeded, and other
// clients may have changed the keys since.
func (c *Client) TransactRepeated(ctx context.Context, what string, request *etcdserverpb.TxnRequest) (
	answer *etcdserverpb.TxnResponse, repeated bool, err error,
) {
	tries := 0
	err = c.Do(ctx, what, c.Members.write, func(ctx context.Context, m *Member) (err error) {
		kv := etcdserverpb.NewKVClient(m.Conn())
		answer, err = kv.Txn(ctx, request, grpc.MaxCallRecvMsgSize(maxReceived))
		if tries++; err == nil && !answer.Succeeded && tries > 1 {
			answer, err = readBack(ctx, kv, request, answer)
		}
		return err
	})
	c.Members.noteRevision(answer.GetHeader())
	return answer, tries > 1, err
}

// readBack corrects the answer to a repeated transaction that was refused, if an earlier attempt
// has succeeded. In this case etcd has all keys that the transaction puts, and none of the keys
// that it deletes. If the transaction puts no key, the answer stays, because the attempt's revision
// is unknown.
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

// effectsOf returns conditions that hold after the operations ops, and a request for the first key
// that they put. It ignores nested transactions.
func effectsOf(ops []*etcdserverpb.RequestOp) (effects []*etcdserverpb.Compare, first []*etcdserverpb.RequestOp) {
	for _, op := range ops {
		if p := op.GetRequestPut(); p != nil {
			value := clientv3.Compare(clientv3.Value(string(p.Key)), "=", string(p.Value))
			effects = append(effects, value.GetCompare(), Under(string(p.Key), p.Lease))
			if first == nil {
				first = []*etcdserverpb.RequestOp{Read(&etcdserverpb.RangeRequest{Key: p.Key, KeysOnly: true})}
			}
		}
		if d := op.GetRequestDeleteRange(); d != nil {
			gone := clientv3.Compare(clientv3.Version(string(d.Key)).WithRange(string(d.RangeEnd)), "=", 0)
			effects = append(effects, gone.GetCompare())
		}
	}
	return effects[:min(len(effects), maxEffects)], first
}

// maxEffects is the maximum number of conditions that identify a transaction. By default, etcd
// accepts 128.
const maxEffects = 100

// Unchanged returns the condition that a key was last changed at a revision. Revision 0 means that
// the key does not exist.
func Unchanged(key string, revision int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.ModRevision(key), "=", revision)
	return c.GetCompare()
}

// Put returns the operation that writes a key. If lease is not 0, the key is attached to it.
func Put(key string, text []byte, lease int64) *etcdserverpb.RequestOp {
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{
		RequestPut: &etcdserverpb.PutRequest{Key: []byte(key), Value: text, Lease: lease},
	}}
}

// Read returns the operation that reads keys.
func Read(request *etcdserverpb.RangeRequest) *etcdserverpb.RequestOp {
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestRange{RequestRange: request}}
}

// Remove returns the operation that deletes a key.
func Remove(key string) *etcdserverpb.RequestOp { return RemoveRange(key, "") }

// RemoveAll returns the operation that deletes a folder.
func RemoveAll(folder string) *etcdserverpb.RequestOp {
	return RemoveRange(folder, clientv3.GetPrefixRangeEnd(folder))
}

// RemoveRange returns the operation that deletes the keys from key up to but not including end.
func RemoveRange(key, end string) *etcdserverpb.RequestOp {
	request := &etcdserverpb.DeleteRangeRequest{Key: []byte(key)}
	if end != "" {
		request.RangeEnd = []byte(end)
	}
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestDeleteRange{RequestDeleteRange: request}}
}
