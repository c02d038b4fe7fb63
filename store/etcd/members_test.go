package etcd

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestMembersPreferHistory gives two clusters as endpoints. The one whose revision is not behind is used, and the other only when that one
// does not answer.
func TestMembersPreferHistory(t *testing.T) {
	t.Parallel()
	seen, other := etcdkit.Start(t, etcdkit.Options{}), etcdkit.Start(t, etcdkit.Options{})
	client := seen.Client()
	for range 5 {
		if _, err := client.Put(t.Context(), "x", ""); err != nil {
			t.Fatal(err)
		}
	}
	s := newMembers(Config{Endpoints: append(seen.Endpoints(), other.Endpoints()...), Prefix: "/vipd"}, Keys{prefix: "/vipd"})
	defer s.close()
	s.seen.Store(6)
	reach := func() string {
		s.close()
		m, err := s.reach(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.endpoint
	}
	for range 10 {
		if got := reach(); got != seen.Endpoints()[0] {
			t.Fatalf("the member in use = %s, want that of the history that was seen", got)
		}
	}
	seen.Kill()
	if got := reach(); got != other.Endpoints()[0] {
		t.Errorf("the member in use = %s, want the only one that answers", got)
	}
}

// TestMembersMove stops the process of the member in use. A request that waits for it is answered by another one, and the former
// connection is closed.
func TestMembersMove(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
	s := newMembers(Config{Endpoints: c.Endpoints(), Prefix: "/vipd"}, Keys{prefix: "/vipd"})
	defer s.close()
	before, err := s.reach(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Members {
		if c.URL(m.Addr()) == before.endpoint {
			m.Pause()
			defer m.Resume()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(time.Minute))
	defer cancel()
	var asked []string
	if err := s.do(ctx, func(ctx context.Context, m *member) error {
		asked = append(asked, m.endpoint)
		_, err := m.prove(ctx, "x")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if asked[0] != before.endpoint || asked[len(asked)-1] == before.endpoint {
		t.Errorf("asked %q, want the member that stopped and then another", asked)
	}
	if s.current.Load() == before {
		t.Error("the member that stopped is still in use")
	}
}

// deaf is a member whose answer to the first transaction is lost.
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

// TestWriteIsReadBack loses the answer to a write. The write is found to be done, with its revision, and is not done twice.
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
	go func() { _ = server.Serve(ln) }() // ends with Stop
	t.Cleanup(server.Stop)
	w, err := NewWriter(Config{Endpoints: []string{"http://" + ln.Addr().String()}, Prefix: "/vipd"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	fields := map[string]any{"vips": []any{"10.96.0.10"}, "ports": []any{map[string]any{"port": int64(80)}}}
	got, err := w.Apply(t.Context(), Change{Name: "web", Fields: fields, Base: 0, By: "test"})
	if err != nil || !got.Changed {
		t.Fatalf("Apply = %+v, %v, want a change", got, err)
	}
	stored, err := member.client.Get(t.Context(), "/vipd/services/web")
	if err != nil || len(stored.Kvs) != 1 || stored.Kvs[0].Version != 1 || stored.Kvs[0].ModRevision != got.Revision {
		t.Errorf("Apply reports revision %d, and etcd has %v, %v", got.Revision, stored, err)
	}
	if n := member.txns.Load(); n != 3 {
		t.Errorf("%d transactions, want the lost one, its repetition, and the reading back", n)
	}
	if past, err := w.History(t.Context(), "web"); err != nil || len(past) != 1 {
		t.Errorf("the history has %d entries (%v), want one", len(past), err)
	}
}
