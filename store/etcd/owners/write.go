package owners

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/balancer/failover"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Write runs a transaction, and returns its outcome and revision. The error explains any outcome
// except Done and Refused.
func (o *Ownership) Write(ctx context.Context, w failover.Write) (failover.Outcome, int64, error) {
	if !o.ready.Load() {
		return failover.Unsent, 0, errors.New("there is no connection to etcd")
	}
	request := &etcdserverpb.TxnRequest{}
	for _, c := range w.If {
		request.Compare = append(request.Compare, client.Unchanged(o.keys.Ownership(c.Key), c.Revision))
	}
	for _, k := range w.Delete {
		request.Success = append(request.Success, client.Remove(o.keys.Ownership(k)))
	}
	for _, p := range w.Put {
		request.Success = append(request.Success, client.Put(o.keys.Ownership(p.Key), p.Text, 0))
	}
	ctx, cancel := context.WithTimeout(ctx, o.WriteLimit)
	defer cancel()
	answer, repeated, err := o.client.TransactRepeated(ctx, o.keys.Prefix+schema.OwnershipFolder, request)
	switch never := (client.Unsent{}); {
	case errors.As(err, &never):
		return failover.Unsent, 0, o.denied(err)
	case err != nil && (client.Forbidden(err) && !repeated || client.Full(err) && o.holds(ctx, request.Compare)):
		return failover.Unsent, 0, o.denied(err)
	case err != nil:
		return failover.Unknown, 0, client.Plain(client.Unwrapped(err))
	case !answer.Succeeded && repeated:
		return failover.Unknown, 0, errors.New("etcd has refused a repeated write; the first attempt might have succeeded")
	case !answer.Succeeded:
		return failover.Refused, 0, nil
	}
	return failover.Done, answer.Header.Revision, nil
}

// holds reports whether conditions still hold. If so, a transaction that etcd refused because of
// its quota was not executed. The check is necessary because etcd executes the transaction that
// exceeds the quota, but returns the same error.
func (o *Ownership) holds(ctx context.Context, conditions []*etcdserverpb.Compare) bool {
	key := o.keys.NodeConfig(o.node) // without a key, a member would answer without a leader
	look := []*etcdserverpb.RequestOp{client.Read(&etcdserverpb.RangeRequest{Key: []byte(key)})}
	_, ok, err := o.client.Commit(ctx, key, conditions, look)
	return err == nil && ok
}
