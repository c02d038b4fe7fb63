package definitions

import (
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// loose removes the endpoints of a service that are under no lease.
func (w *Writer) loose(ctx context.Context, name balancer.Name) (ops []*etcdserverpb.RequestOp, err error) {
	err = w.client.ReadFolder(ctx, schema.EndpointFolder+string(name)+"/", new(int64), func(_ string, kv *mvccpb.KeyValue) {
		if kv.Lease == 0 {
			ops = append(ops, client.Remove(string(kv.Key)))
		}
	})
	return ops, err
}

// mostNested is how many operations go into a transaction within another: etcd takes 128, less those of all transactions around it.
const mostNested = 20

// nested puts operations, if there are many, into transactions within the one that they are for: MaxEndpoints come to two.
func nested(ops []*etcdserverpb.RequestOp) []*etcdserverpb.RequestOp {
	if len(ops) <= mostOps {
		return ops
	}
	for len(ops) > mostNested {
		var groups []*etcdserverpb.RequestOp
		for group := range slices.Chunk(ops, mostNested) {
			groups = append(groups, &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestTxn{RequestTxn: &etcdserverpb.TxnRequest{Success: group}}})
		}
		ops = groups
	}
	return ops
}

// mostBytes is how long the operations of one kind may be in a transaction: etcd takes requests of 1.5 MiB.
const mostBytes = 1 << 20

// fitting is how many of the first removals go into one transaction: one at least.
func fitting(ops []*etcdserverpb.RequestOp) int {
	const around = 32 // what is written around a key, and more
	bytes := 0
	for i, op := range ops {
		if bytes += len(op.GetRequestDeleteRange().GetKey()) + around; bytes > mostBytes && i > 0 {
			return i
		}
	}
	return len(ops)
}
