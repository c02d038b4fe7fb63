package etcdkit_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestCluster starts three members with TLS and users, and kills one. The other members must serve,
// and users must have only their own permissions.
func TestCluster(t *testing.T) {
	c := etcdkit.Start(t, etcdkit.Options{Members: 3, TLS: true})
	client := c.Client()
	wait.For(t, wait.Patience, "etcd to take what is written", func() bool { _, err := client.Put(t.Context(), "/a", "1"); return err == nil })
	c.MoveLeader()
	c.Members[0].Kill()
	wait.For(t, wait.Patience, "an answer after a crash of one member", func() bool {
		got, err := client.Get(t.Context(), "/a")
		return err == nil && len(got.Kvs) == 1
	})
	c.Members[0].Start()
	c.EnableAuth(etcdkit.User{Name: "reader", Password: "secret", Read: []string{"/a/"}})
	root := c.Client()
	wait.For(t, wait.Patience, "root to write", func() bool {
		_, err := root.Put(t.Context(), "/a", "2")
		if err != nil {
			t.Log(err) // the error may be due to an election
		}
		return err == nil
	})
	if _, err := client.Get(t.Context(), "/a"); err == nil {
		t.Error("Get without permission: error = nil, want an error")
	}
}

func TestRelay(t *testing.T) {
	c := etcdkit.Start(t, etcdkit.Options{})
	r := etcdkit.NewRelay(t, c.Members[0].Addr())
	through := c.Client()
	through.SetEndpoints(c.URL(r.Addr()))
	get := func() error {
		ctx, cancel := contextFor(t)
		defer cancel()
		_, err := through.Get(ctx, "/a", clientv3.WithCountOnly())
		return err
	}
	wait.For(t, wait.Patience, "an answer through the relay", func() bool { return get() == nil })
	if r.Bytes() == 0 {
		t.Fatal("bytes through the relay = 0, want at least 1")
	}
	r.Cut()
	if get() == nil {
		t.Error("a cut link forwarded data")
	}
	r.Heal()
	wait.For(t, wait.Patience, "an answer after healing", func() bool { return get() == nil })
	r.Freeze()
	if get() == nil {
		t.Error("a frozen link forwarded data")
	}
	r.Heal()
	wait.For(t, wait.Patience, "an answer after thawing", func() bool { return get() == nil })
}

func TestWipe(t *testing.T) {
	c := etcdkit.Start(t, etcdkit.Options{})
	client := c.Client()
	if _, err := client.Put(t.Context(), "/a", "1"); err != nil {
		t.Fatal(err)
	}
	if revision := c.Compact(); revision < 2 {
		t.Errorf("revision of the compaction = %d, want at least 2", revision)
	}
	c.Members[0].Stop()
	c.Members[0].Wipe()
	c.Members[0].Start()
	if got, err := client.Get(t.Context(), "/a"); err != nil || len(got.Kvs) != 0 {
		t.Errorf("after a wipe: key = %v, %v; want none", got, err)
	}
}

func contextFor(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 2*time.Second)
}
