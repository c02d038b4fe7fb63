package etcd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestNodes lists nodes after valid and invalid writes to their keys. Each node must have its valid
// values, and a problem for each invalid value.
func TestNodes(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	last := p.put("/services/web", web)
	p.put("/nodes/b/config", `{"mode":"ipvs","rack":7}`)
	p.put("/nodes/a/live", "?")
	p.put("/nodes/a/status", `{"revision":1,"new":[1]}`)
	p.put("/nodes/c/config", `{"mode":"fastest"}`)
	p.put("/nodes/c/status", `[]`)
	p.put("/nodes/d/other", `x`)
	for _, hostile := range []string{"/nodes//config", "/nodes/x y/config", "/nodes/\xff/live", "/nodes/"} {
		p.put(hostile, "{}")
	}
	nodes, revision, err := w.Nodes(t.Context())
	if err != nil || len(nodes) != 4 || revision != last {
		t.Fatalf("nodes = %+v, revision = %d, want 4 nodes and revision %d; %v", nodes, revision, last, err)
	}
	p.put("/nodes/b/status", `{"revision":1000000}`)
	last = apply(t, w, definitions.Change{Name: "web", Base: definitions.Any}).Revision // removes the service
	if _, revision, err := newWriter(t, p.config).Nodes(t.Context()); err != nil || revision != last {
		t.Errorf("newest revision = %d, want %d, which removed the service; %v", revision, last, err)
	}
	a, b, d := nodes[0], nodes[1], nodes[2]
	if a.Name != "a" || a.Live == nil || a.Status == nil || a.Status.Revision != 1 || len(a.Problems) != 1 {
		t.Errorf("node a = %+v, want it live, with a status and one problem", a)
	}
	if b.Name != "b" || b.Live != nil || *b.Config != (schema.NodeConfig{Mode: "ipvs"}) || len(b.Problems) != 1 {
		t.Errorf("node b = %+v, want it not live, with a configuration and one problem", b)
	}
	if d.Name != "c" || d.Config != nil || d.Status != nil || len(d.Problems) != 2 {
		t.Errorf("node c = %+v, want two problems and no valid values", d)
	}
}

// TestNewestRevision writes services' keys and nodes' keys. The newest revision must soon be the
// revision of the last key that concerns all nodes, even for a client that has read the newest
// revision before. A key of a single node must not affect it.
func TestNewestRevision(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	for _, key := range []string{"/services/web", "/endpoints/web/a", "/overrides/web/10.0.0.1", "/vips/10.96.0.7"} {
		want := p.put(key, web)
		p.put("/nodes/a/status", "{}")
		wait.For(t, within, fmt.Sprintf("revision %d of %s to be the newest", want, key), func() bool {
			_, got, err := w.Nodes(t.Context())
			if err != nil || got > want {
				t.Fatalf("newest revision = %d, want %d; %v", got, want, err)
			}
			return got == want
		})
	}
}

// TestNodesOnly lists nodes as a user who may read only the nodes' keys. Nodes must return the
// nodes, but no newest revision.
func TestNodesOnly(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/web", web)
	p.put("/nodes/a/status", `{"revision":2}`)
	waiter := etcdkit.User{Name: "waiter", Password: "secret", Read: []string{"/vipda/nodes/"}}
	c.EnableAuth(waiter)
	nodes, revision, err := newWriter(t, p.as(t, waiter)).Nodes(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Status == nil || nodes[0].Status.Revision != 2 || revision != 0 {
		t.Errorf("nodes = %+v, revision = %d, %v, want one node and revision 0", nodes, revision, err)
	}
}

// TestSetNode changes the configurations of nodes. Fields that this version does not know must
// remain.
func TestSetNode(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	p.put("/nodes/b/config", `{"mode":"ipvs","rack":7}`)
	p.put("/nodes/c/config", `{"mode":"fastest"}`)
	set := func(name string, edit func(*schema.NodeConfig)) (client.Result, error) {
		return w.SetNode(t.Context(), name, func(c schema.NodeConfig) schema.NodeConfig { edit(&c); return c })
	}
	text := func(name string) string {
		answer, err := p.client.Get(t.Context(), p.config.Prefix+"/nodes/"+name+"/config")
		if err != nil {
			t.Fatal(err)
		}
		if len(answer.Kvs) == 0 {
			return "none"
		}
		leased := ""
		if answer.Kvs[0].Lease != 0 {
			leased = "(leased)"
		}
		return strings.Join(strings.Fields(string(answer.Kvs[0].Value)), "") + leased
	}
	for _, step := range []struct {
		name    string
		edit    func(*schema.NodeConfig)
		want    string
		changed bool
	}{
		{"b", func(c *schema.NodeConfig) { c.Zone = "z1" }, `{"mode":"ipvs","rack":7,"zone":"z1"}`, true},
		{"b", func(c *schema.NodeConfig) {}, `{"mode":"ipvs","rack":7,"zone":"z1"}`, false},
		{"b", func(c *schema.NodeConfig) { *c = schema.NodeConfig{} }, `{"rack":7}`, true},
		{"c", func(c *schema.NodeConfig) { c.Mode = "auto" }, `{"mode":"auto"}`, true},
		{"c", func(c *schema.NodeConfig) { c.Mode = "" }, `none`, true},
		{"c", func(c *schema.NodeConfig) { c.By = "ana" }, `none`, false},
		{"c", func(c *schema.NodeConfig) { c.Mode, c.By = "auto", "ana" }, `{"by":"ana","mode":"auto"}`, true},
		{"c", func(c *schema.NodeConfig) { c.Mode, c.By = "", "ben" }, `{"by":"ben"}(leased)`, true},
		{"c", func(c *schema.NodeConfig) { c.By = "cleo" }, `{"by":"ben"}(leased)`, false},
	} {
		if r, err := set(step.name, step.edit); err != nil || r.Changed != step.changed || text(step.name) != step.want {
			t.Errorf("configuration of %s = %s, %+v, %v; want %s", step.name, text(step.name), r, err, step.want)
		}
	}
	if nodes, err := w.Statuses(t.Context()); err != nil || len(nodes) != 1 {
		t.Errorf("Statuses() = %+v, %v; want one node", nodes, err)
	}
	_, err := set("b", func(c *schema.NodeConfig) { c.Mode = "ipv" })
	expectError(t, err, `configuring node b: "ipv" is not a mode`)
	_, err = set("b/c", func(*schema.NodeConfig) {})
	expectError(t, err, "is not valid: use only printable characters")
	if _, err := w.Presence("b/c", schema.NodeLive{}, time.Minute); err == nil {
		t.Error("Presence accepted a node name that contains a slash")
	}
	if _, err := watch.New(watch.Options{Config: p.config, Node: "b c"}); err == nil {
		t.Error("New accepted a node name that contains a space")
	}
}
