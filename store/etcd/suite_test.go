package etcd_test

import (
	"encoding/json"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/storetest"
	"vipd/test/etcdkit"
)

// TestSource runs the suite of all sources over real etcd. The places share a server, each under its own prefix.
func TestSource(t *testing.T) {
	c := etcdkit.Start(t, etcdkit.Options{})
	client := c.Client()
	n := 0
	storetest.Run(t, func(t *testing.T) storetest.Place {
		n++
		return &place{t: t, client: client, config: configAt(c, n)}
	})
}

// configAt is how the cluster is reached, with a prefix of its own for each n.
func configAt(c *etcdkit.Cluster, n int) etcd.Config {
	return etcd.Config{Endpoints: c.Endpoints(), Prefix: "/vipd" + string(rune('a'+n))}
}

// place is services in etcd.
type place struct {
	t      *testing.T
	client *clientv3.Client
	config etcd.Config
}

func (p *place) Source() store.Source {
	s, err := etcd.New(etcd.Options{Config: p.config})
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

func (p *place) put(key, text string, options ...clientv3.OpOption) int64 {
	p.t.Helper()
	r, err := p.client.Put(p.t.Context(), p.config.Prefix+key, text, options...)
	if err != nil {
		p.t.Fatal(err)
	}
	return r.Header.Revision
}

func (p *place) Delete(name balancer.Name) { p.remove("/services/" + string(name)) }

func (p *place) remove(key string) {
	p.t.Helper()
	if _, err := p.client.Delete(p.t.Context(), p.config.Prefix+key); err != nil {
		p.t.Fatal(err)
	}
}
