package etcd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// proxied starts a cluster that requires TLS and authentication, with a service, and a gRPC proxy
// in front of it. It returns a client configuration that connects through the proxy.
func proxied(t *testing.T, o etcdkit.Options) (c *etcdkit.Cluster, proxy *etcdkit.Member, p *place, config client.Config) {
	t.Helper()
	o.TLS = true
	c = etcdkit.Start(t, o)
	p = &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/web", web)
	p.put("/endpoints/web/a", `{"address":"192.168.1.12"}`)
	folder := func(name string) string { return p.config.Prefix + "/" + name + "/" }
	c.EnableAuth(
		etcdkit.User{Name: "vipd", Password: "secret", Read: []string{folder("services"), folder("endpoints"), folder("overrides")}},
		etcdkit.User{Name: "registrar", Password: "secret", Write: []string{folder("endpoints") + "web/"}},
	)
	p.client = c.Client()
	proxy = c.StartProxy()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	config = p.config
	config.Endpoints = []string{c.URL(proxy.Addr())}
	config.CAFile, config.CertFile, config.KeyFile = c.Files.CA, c.Files.ClientCert, c.Files.ClientKey
	config.Username, config.PasswordFile = "vipd", file
	return c, proxy, p, config
}

// TestProxyWiped wipes etcd behind a proxy, which continues its watches. The source must detect
// that etcd has another history, and publish the new state.
func TestProxyWiped(t *testing.T) {
	t.Parallel()
	for _, writes := range []int{0, 20} { // the new revision is below or above the last seen revision
		c := etcdkit.Start(t, etcdkit.Options{})
		proxy := c.StartProxy()
		p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
		p.put("/services/web", web)
		p.put("/endpoints/web/a", `{"address":"192.168.1.12"}`)
		config := p.config
		config.Endpoints = []string{c.URL(proxy.Addr())}
		f := follow(t, newSource(t, watch.Options{Config: config}))
		f.wait("the first state", connected)
		c.Members[0].Stop()
		c.Members[0].Wipe()
		c.Members[0].Start()
		p.client = c.Client()
		p.put("/services/new", web)
		for range writes {
			p.put("/elsewhere", "x")
		}
		f.wait("the new history", func(s store.Snapshot) bool {
			return s.Services.Has("new") && s.Services.Len() == 1 && s.Endpoints.Len() == 0
		})
	}
}

// TestProxy follows services through etcd's gRPC proxy. The source must find all changes. A period
// without changes must not count as an outage.
func TestProxy(t *testing.T) {
	t.Parallel()
	_, proxy, p, config := proxied(t, etcdkit.Options{})
	var lost atomic.Int64
	f := follow(t, newSource(t, watch.Options{Config: config, Patience: time.Millisecond, Connection: func(_ int64, err error) {
		if err != nil {
			lost.Add(1)
		}
	}}))
	f.wait("the first state", connected)
	f.reaches(p.put("/services/web", `{"vips":["10.96.0.11"],"ports":[{"port":80}]}`))
	weight := 2
	wait.For(t, wait.Patience, "a quiet time in which etcd is not lost, and then one snapshot of one change", func() bool {
		n, before := f.count(), lost.Load()
		time.Sleep(5 * time.Second) // longer than this source waits for progress
		weight++
		f.reaches(p.put("/endpoints/web/a", fmt.Sprintf(`{"address":"192.168.1.13","weight":%d}`, weight)))
		return f.count()-n == 1 && lost.Load() == before
	})
	n, before := f.turns(), lost.Load()
	proxy.Kill()
	f.wait("the outage", func(s store.Snapshot) bool { return !s.Connected })
	proxy.Start()
	f.wait("the return", connected)
	f.reaches(p.put("/endpoints/web/a", `{"address":"192.168.1.14"}`))
	f.stop()
	if got, turns := lost.Load()-before, (f.turns()-n+1)/2; got < 1 || int(got) > turns {
		t.Errorf("outages reported to Connection = %d, outages in snapshots = %d; want at least 1 reported outage, and at most as many as in snapshots", got, turns)
	}
}

// TestProxyLosesEtcd kills etcd behind a running proxy and starts it again. The source must report
// the outage and then recover.
func TestProxyLosesEtcd(t *testing.T) {
	t.Parallel()
	c, _, p, config := proxied(t, etcdkit.Options{})
	f := follow(t, newSource(t, watch.Options{Config: config, Patience: time.Millisecond}))
	f.wait("the first state", connected)
	c.Members[0].Kill()
	f.wait("the outage", func(s store.Snapshot) bool { return !s.Connected })
	c.Members[0].Start()
	f.wait("the return", connected)
	p.client = c.Client()
	f.reaches(p.put("/endpoints/web/a", `{"address":"192.168.1.14"}`))
}

// TestProxyTokens follows etcd through a proxy, with authentication. The proxy's shared watches use
// the token of the first client. The source must find changes even after this token has expired.
// The proxy may also stop creating watches: its own watch of the leader has no token, so the proxy
// opens new streams endlessly.
func TestProxyTokens(t *testing.T) {
	t.Parallel()
	c, _, p, config := proxied(t, etcdkit.Options{TokenTTL: time.Second})
	first := follow(t, newSource(t, watch.Options{Config: config, Patience: time.Millisecond}))
	first.wait("the first state", connected)
	second := follow(t, newSource(t, watch.Options{Config: config, Patience: time.Millisecond}))
	second.wait("the first state", connected)
	first.stop()
	time.Sleep(3 * time.Second) // until the token expires; etcd checks for that every second
	c.Members[0].Kill()
	c.Members[0].Start()
	p.client = c.Client()
	second.waitForRevision(p.put("/endpoints/web/a", `{"address":"192.168.1.14"}`))
}

// TestProxyRegistrar runs a registrar through a proxy. The endpoint's lease must last as long as
// the registrar is running, and must expire soon afterwards.
func TestProxyRegistrar(t *testing.T) {
	t.Parallel()
	_, _, p, config := proxied(t, etcdkit.Options{})
	config.Username = "registrar"
	w, err := etcd.NewStore(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	id := balancer.EndpointID{Service: "web", ID: "b"}
	r, err := w.Registrar(id, someEndpoint(), life)
	if err != nil {
		t.Fatal(err)
	}
	var said reports
	r.Report = said.add
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	present := func() (there bool) {
		p.try("return the endpoint", func(ctx context.Context) error {
			answer, err := p.client.Get(ctx, p.config.Prefix+"/endpoints/web/b")
			there = err == nil && len(answer.Kvs) == 1
			return err
		})
		return there
	}
	wait.For(t, within, "the endpoint", present)
	for end := time.Now().Add(life + life/2); time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // longer than the lease lasts
		if !present() {
			t.Fatal("the endpoint is missing while its registrar is running")
		}
	}
	wait.For(t, within, "the registrar to report success", func() bool { return said.last() == "<nil>" })
	said.mu.Lock()
	for i, text := range said.all { // a report may be about a late answer
		if was := i > 0 && said.all[i-1] == "<nil>"; !strings.Contains(text, "no answer in time") && !strings.Contains(text, "timed out") && (text != "<nil>" || was) {
			t.Errorf("reports of the registrar = %q, want only reports about late answers, each followed by a report of success", said.all)
			break
		}
	}
	said.mu.Unlock()
	cancel()
	<-done
	wait.For(t, within, "the end of the lease", func() bool { return !present() })
}

// TestProxyFaults injects the faults of TestFaults behind a proxy. The source does not notice them,
// because its connection to the proxy continues. It must still reach the same state as a fresh
// read.
func TestProxyFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	proxy := w.cluster.StartProxy(w.through().Endpoints...)
	config := w.config
	config.Endpoints = []string{w.cluster.URL(proxy.Addr())}
	f := followWithState(t, watch.Options{Config: config}, t.TempDir())
	for range 8 {
		w.fault()
		for range 1 + w.IntN(10) {
			w.write()
		}
		if w.IntN(3) == 0 {
			w.cluster.Compact()
		}
		w.heal()
		w.compare(f)
	}
}
