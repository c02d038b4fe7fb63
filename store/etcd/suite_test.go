package etcd_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/watch"
	"vipd/store/storetest"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestSource runs the test suite for sources with a real etcd. The places of the suite share a
// server, and each has its own prefix.
func TestSource(t *testing.T) { // not in parallel, because the suite counts all goroutines
	c := etcdkit.Start(t, etcdkit.Options{})
	client := c.Client()
	n := 0
	storetest.Run(t, func(t *testing.T) storetest.Place {
		n++
		return &place{t: t, client: client, config: configAt(c, n)}
	})
}

// configAt returns a client configuration for the cluster, with a different prefix for each n.
func configAt(c *etcdkit.Cluster, n int) client.Config {
	return client.Config{Endpoints: c.Endpoints(), Prefix: "/vipd" + string(rune('a'+n))}
}

// place is a prefix in etcd that holds services.
type place struct {
	t      *testing.T
	client *clientv3.Client
	config client.Config
}

func (p *place) Source() store.Source {
	s, err := watch.New(watch.Options{Config: p.config, Patience: within}) // the patience is long, so the first snapshot waits for etcd even on a busy machine
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *place) Write(name balancer.Name, fields map[string]any) {
	p.t.Helper()
	text, err := json.Marshal(fields)
	if err != nil {
		p.t.Fatal(err)
	}
	p.put("/services/"+string(name), string(text))
}

// put writes a key, and returns the revision of the write. It retries while the cluster has no
// leader.
func (p *place) put(key, text string, options ...clientv3.OpOption) (revision int64) {
	p.t.Helper()
	p.try("put "+key, func(ctx context.Context) error {
		r, err := p.client.Put(ctx, p.config.Prefix+key, text, options...)
		if err == nil {
			revision = r.Header.Revision
		}
		return err
	})
	return revision
}

func (p *place) Delete(name balancer.Name) { p.remove("/services/" + string(name)) }

// Paused returns false, because a definition in etcd is written atomically.
func (p *place) Paused() bool { return false }

func (p *place) remove(key string) {
	p.t.Helper()
	p.try("delete "+key, func(ctx context.Context) error {
		_, err := p.client.Delete(ctx, p.config.Prefix+key)
		return err
	})
}

func (p *place) try(what string, operation func(context.Context) error) {
	p.t.Helper()
	var err error
	defer func() {
		if p.t.Failed() && err != nil {
			p.t.Logf("%s: %v", what, err)
		}
	}()
	wait.For(p.t, within, "etcd to "+what, func() bool {
		ctx, cancel := context.WithTimeout(p.t.Context(), 3*time.Second)
		defer cancel()
		err = operation(ctx)
		return err == nil
	})
}
