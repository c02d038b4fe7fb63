package etcd_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/test/etcdkit"
)

// deaf is a member that executes the first transaction, but answers it with a timeout.
type deaf struct {
	etcdserverpb.UnimplementedKVServer
	client *clientv3.Client
	txns   atomic.Int64
}

func (d *deaf) Range(ctx context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return etcdserverpb.NewKVClient(d.client.ActiveConnection()).Range(ctx, r)
}

func (d *deaf) Txn(ctx context.Context, r *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	answer, err := etcdserverpb.NewKVClient(d.client.ActiveConnection()).Txn(ctx, r)
	if d.txns.Add(1) == 1 && err == nil {
		return nil, rpctypes.ErrGRPCTimeout
	}
	return answer, err
}

// TestWriteIsReadBack loses the answer to a write. The writer must detect that the write was
// executed, return its revision, and not execute it again.
func TestWriteIsReadBack(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	member := &deaf{client: c.Client()}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, member)
	go func() { _ = server.Serve(ln) }() // Serve returns after Stop
	t.Cleanup(server.Stop)
	w, err := etcd.NewStore(client.Config{Endpoints: []string{"http://" + ln.Addr().String()}, Prefix: "/vipd"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	fields := map[string]any{"vips": []any{"10.96.0.10"}, "ports": []any{map[string]any{"port": int64(80)}}}
	got, err := w.Apply(t.Context(), definitions.Change{Name: "web", Fields: fields, Base: 0, By: "test"})
	if err != nil || !got.Changed {
		t.Fatalf("Apply = %+v, %v, want a change", got, err)
	}
	stored, err := member.client.Get(t.Context(), "/vipd/services/web")
	if err != nil || len(stored.Kvs) != 1 || stored.Kvs[0].Version != 1 || stored.Kvs[0].ModRevision != got.Revision {
		t.Errorf("Apply: revision = %d, want the revision of the only version in etcd: %v, %v", got.Revision, stored, err)
	}
	if n := member.txns.Load(); n != 3 {
		t.Errorf("transactions = %d, want 3: the transaction without an answer, its repetition, and a read", n)
	}
	if past, err := w.History(t.Context(), "web"); err != nil || len(past) != 1 {
		t.Errorf("history entries = %d (%v), want 1", len(past), err)
	}
}
