package etcd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// configLog records the configurations that a source reports.
type configLog struct {
	mu  sync.Mutex // guards the fields below
	all []schema.NodeConfig
}

func (c *configLog) add(config schema.NodeConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, config)
}

func (c *configLog) list() []schema.NodeConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

func (c *configLog) wait(t *testing.T, want ...schema.NodeConfig) {
	t.Helper()
	wait.For(t, within, "the configuration", func() bool { return len(c.list()) >= len(want) })
	if got := c.list(); !slices.Equal(got, want) {
		t.Fatalf("reported configurations = %v, want %v", got, want)
	}
}

// TestNodeConfig writes a node's configurations to etcd. The source must report the configuration
// when it starts, after changes, and after a restart without etcd. If a configuration is invalid,
// the previous configuration must stay in use.
func TestNodeConfig(t *testing.T) {
	t.Parallel()
	_, relay, p := single(t, etcdkit.Options{})
	p.put("/nodes/n1/config", `{"mode":"ipvs"}`)
	p.put("/nodes/n10/config", `{"mode":"userspace"}`)
	var c configLog
	options, dir := watch.Options{Config: p.config, Node: "n1", Patience: within, Configured: c.add}, t.TempDir()
	f := followWithState(t, options, dir)
	f.wait("the first state", connected)
	ipvs, both := schema.NodeConfig{Mode: "ipvs"}, schema.NodeConfig{Mode: "auto", Zone: "z1"}
	c.wait(t, ipvs)
	n := f.count()
	p.put("/nodes/n1/config", `{"mode":"auto","zone":"z1"}`)
	c.wait(t, ipvs, both)
	p.put("/nodes/n1/status", `{}`) // a source does not follow this key
	p.put("/nodes/n10/config", `{}`)
	f.reaches(p.put("/nodes/n1/config", `{"zone":"z1","mode":"auto"}`))
	if f.count() != n {
		t.Errorf("snapshots after changes to nodes = %d, want 0", f.count()-n)
	}
	for text, want := range map[string]string{
		`{"mode":"ipv"}`: `did you mean "ipvs"`, `{"mode":7}`: "mode", `{`: "is not JSON", `[]`: "is not a JSON object", ``: "is empty",
		`{"zone":"` + strings.Repeat("z", 20<<10) + `"}`: "at most 16384 are allowed", `{"mode":"auto","zone":"z1","x":1}`: "unknown field",
	} {
		p.put("/nodes/n1/config", text)
		s := f.wait("the problem of "+quoted(text), func(s store.Snapshot) bool {
			return len(s.Problems) == 1 && strings.Contains(s.Problems[0].Text+s.Problems[0].Field, want)
		})
		if got := s.Problems[0]; got.Origin.Key != p.config.Prefix+"/nodes/n1/config" || got.Service != "" || s.Services.Len() != 1 {
			t.Errorf("problem = %+v, want one about the node's configuration", got)
		}
	}
	c.wait(t, ipvs, both)
	relay.Cut()
	f.stop()

	var kept configLog
	options.Configured, options.Patience = kept.add, time.Millisecond
	f = followWithState(t, options, dir)
	f.wait("the saved state", func(store.Snapshot) bool { return true })
	kept.wait(t, both)
	relay.Heal()
	f.wait("the return", connected)
	p.remove("/nodes/n1/config")
	kept.wait(t, both, schema.NodeConfig{})
	f.stop()
	relay.Cut()
	p.put("/nodes/n1/config", `{"mode":"auto"}`)

	var other configLog // the node now has another name, so the old name's configuration must not apply
	options.Node, options.Configured = "n2", other.add
	f = followWithState(t, options, dir)
	f.wait("the saved state", func(store.Snapshot) bool { return true })
	other.wait(t, schema.NodeConfig{})
}

func quoted(text string) string { return text[:min(len(text), 40)] }

// TestConfiguredBeforeFirst starts a source. The source must report the node's configuration before
// it publishes the first snapshot.
func TestConfiguredBeforeFirst(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	p.put("/nodes/n1/config", `{"mode":"ipvs"}`)
	var order []string
	ctx, cancel := context.WithCancel(t.Context())
	source := newSource(t, watch.Options{Config: p.config, Node: "n1", Patience: within, Configured: func(c schema.NodeConfig) { order = append(order, c.Mode) }})
	if err := source.Watch(ctx, func(store.Snapshot) { order = append(order, "snapshot"); cancel() }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(order, []string{"ipvs", "snapshot"}) {
		t.Errorf("order of calls = %q, want the configuration ipvs and then the snapshot", order)
	}
}

// role returns a user for a daemon on the node n1. The user may read the keys that the daemon
// follows, and write the daemon's own keys.
func role() etcdkit.User {
	return etcdkit.User{
		Name: "n1", Password: "secret",
		Read:  []string{"/vipda/services/", "/vipda/endpoints/", "/vipda/overrides/", "/vipda/vips/", "/vipda/nodes/n1/config", "/vipda/pools/", "/vipda/ownership/policy/", "/vipda/pending", "/vipda/hosts/"},
		Write: []string{"/vipda/nodes/n1/live", "/vipda/nodes/n1/status", "/vipda/hosts/n1"},
	}
}

// as returns a client configuration that authenticates as the user u.
func (p *place) as(t *testing.T, u etcdkit.User) client.Config {
	t.Helper()
	config := p.config
	config.Username, config.PasswordFile = u.Name, filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte(u.Password), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// TestRole runs a daemon as the user that role returns. The user's permissions must be sufficient,
// even after the daemon's lease has expired. The daemon must write only its presence and its
// status.
func TestRole(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	p.put("/vips/10.96.0.10", "web")
	last := p.put("/nodes/n1/config", `{"mode":"ipvs"}`)
	c.EnableAuth(role())
	p.client = c.Client()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	everything := p.client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(last+1))
	config := p.as(t, role())
	var configs configLog
	f := followWithState(t, watch.Options{Config: config, Node: "n1", Patience: within, Configured: configs.add}, t.TempDir())
	f.wait("the first state", func(s store.Snapshot) bool { return s.Connected && len(s.Problems) == 1 }) // the only problem is about an allocated address without a service
	n := appear(t, newWriter(t, config), "n1", "1.0", 3*time.Second)
	n.SetStatus(schema.NodeStatus{Revision: 1})
	status := func(revision int) {
		t.Helper()
		p.try(fmt.Sprint("have status ", revision), func(ctx context.Context) error {
			answer, err := p.client.Get(ctx, "/vipda/nodes/n1/status")
			if err == nil && (len(answer.Kvs) == 0 || !strings.Contains(string(answer.Kvs[0].Value), fmt.Sprintf(`"revision": %d`, revision))) {
				err = os.ErrNotExist
			}
			return err
		})
	}
	status(1)
	wait.For(t, within, "the report", func() bool { return n.last() == "<nil>" })
	relay.Cut()
	p.try("end its lease", func(ctx context.Context) error {
		answer, err := p.client.Get(ctx, "/vipda/nodes/n1/live")
		if err == nil && len(answer.Kvs) > 0 {
			err = os.ErrExist
		}
		return err
	})
	relay.Heal()
	n.SetStatus(schema.NodeStatus{Revision: 2})
	p.put("/nodes/n1/config", `{"zone":"z1"}`)
	configs.wait(t, schema.NodeConfig{Mode: "ipvs"}, schema.NodeConfig{Zone: "z1"})
	status(2)
	n.stop()
	f.stop()
	end := p.put("/end", "")
	written := map[string]int{}
	for answer := range everything {
		for _, e := range answer.Events {
			written[string(e.Kv.Key)]++
		}
		if answer.Header.Revision >= end {
			break
		}
	}
	if written["/vipda/nodes/n1/live"] < 3 || written["/vipda/nodes/n1/status"] < 3 || len(written) != 4 {
		t.Errorf("written keys = %v, want nodes/n1/live and nodes/n1/status at least 3 times each, and the test's keys nodes/n1/config and end", written)
	}
}

// TestMissingRights runs a source that may not read allocated addresses and the node's
// configuration. The source must follow all other keys, and a problem must report each missing
// permission until it is granted. If a permission is revoked later, the last values must stay in
// use.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	p.put("/services/auto", `{"vips":["auto"],"ports":[{"port":80}]}`)
	p.put("/vips/10.96.0.1", "auto")
	p.put("/nodes/n1/config", `{"mode":"ipvs"}`)
	old := role()
	old.Read, old.Write = slices.Concat(old.Read[:3], old.Read[5:]), nil
	c.EnableAuth(old)
	p.client = c.Client()
	config := p.as(t, old)
	var told configLog
	f := follow(t, newSource(t, watch.Options{Config: config, Node: "n1", Patience: within, Configured: told.add}))
	s := f.wait("the first state", connected)
	if len(s.Problems) != 2 || s.Problems[0].Origin.Key != "/vipda/nodes/n1/config" || s.Problems[1].Origin.Key != "/vipda/vips/" {
		t.Errorf("problems = %v, want one about nodes/n1/config and one about vips/", s.Problems)
	}
	for _, problem := range s.Problems {
		if problem.Severity != balancer.SeverityWarning || !strings.Contains(problem.Text, "the user n1 may not read it: give its role that permission") {
			t.Errorf("problem = %+v, want a warning that names the missing permission", problem)
		}
	}
	if s.Services.Len() != 2 || s.Endpoints.Len() != 1 || len(s.Services.At("auto").Allocated) != 0 {
		t.Errorf("services = %d, endpoints = %d, want 2 and 1, and no allocated addresses", s.Services.Len(), s.Endpoints.Len())
	}
	read, err := newWriter(t, config).Read(t.Context(), nil)
	if err != nil || len(read.Problems) != 1 || read.Services.Len() != 2 {
		t.Errorf("Read: services = %d, problems = %v, %v, want 2 services and 1 problem", read.Services.Len(), read.Problems, err)
	}
	told.wait(t, schema.NodeConfig{})
	f.reaches(p.put("/endpoints/web/b", `{"address":"10.0.0.9"}`))
	c.Grant("n1", "/vipda/nodes/n1/config")
	c.Grant("n1", "/vipda/vips/")
	f.wait("no problems", func(s store.Snapshot) bool { return len(s.Problems) == 0 && len(s.Services.At("auto").Allocated) == 1 })
	told.wait(t, schema.NodeConfig{}, schema.NodeConfig{Mode: "ipvs"})
	p.put("/vips/10.96.0.1", "nobody-else") // an arbitrary value, which shows that the key is followed
	f.wait("the change", func(s store.Snapshot) bool { return len(s.Services.At("auto").Allocated) == 0 })
	p.put("/vips/10.96.0.1", "auto")
	f.wait("the change", func(s store.Snapshot) bool { return len(s.Services.At("auto").Allocated) == 1 })

	c.Revoke("n1", "/vipda/vips/")
	relay.Cut()
	relay.Heal()
	s = f.wait("the problem", func(s store.Snapshot) bool { return s.Connected && len(s.Problems) == 1 })
	if len(s.Services.At("auto").Allocated) != 1 {
		t.Error("allocated addresses are missing after the permission was revoked, want the last values")
	}
	f.reaches(p.put("/endpoints/web/c", `{"address":"10.0.0.10"}`))
	told.wait(t, schema.NodeConfig{}, schema.NodeConfig{Mode: "ipvs"})
}
