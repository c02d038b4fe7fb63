package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// hostile is a value that a malicious user might write, with a part of the problem that it must
// cause.
type hostile struct {
	text, want string
	warning    bool
}

// hostileKeys returns malicious values by their keys.
func hostileKeys() map[string]hostile {
	return map[string]hostile{
		"/services/a":              {"", "is empty", false},
		"/services/b":              {"{", "is not JSON: unexpected end of JSON input at byte 1", false},
		"/services/c":              {"\x00\xff\xfe", "is not JSON", false},
		"/services/d":              {"[]", "is not a JSON object", false},
		"/services/e":              {strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), "JSON", false},
		"/services/e2":             {`{"health":` + strings.Repeat("[", 30) + strings.Repeat("]", 30) + `}`, "nested deeper than 16", false},
		"/services/f":              {`{"vips":["10.0.0.1"],"vips":["10.0.0.2"]}`, `has "vips" twice`, false},
		"/services/g":              {strings.Repeat(" ", 1<<20+1), "has 1048577 bytes; at most 1048576 are allowed", false},
		"/services/g2":             {`{"vips":["` + strings.Repeat("1", 2<<20-1000) + `"]}`, "has 2096165 bytes; at most 1048576 are allowed", false},
		"/services/h":              {`{"vips":["10.0.0.1"],"ports":[{"port":80}],"colour":"red"}`, "unknown field", true},
		"/services/i":              {`{"vips":["10.0.0.1"],"ports":[{"port":80.5}]}`, "80.5", false},
		"/services/j":              {`{"vips":["10.0.0.1"],"ports":[{"port":80}],"health":{"type":"https","ca_file":"ca.pem"}}`, "must be absolute: each host reads its own file", false},
		"/services/Web":            {web, "has no valid service name", false},
		"/services/web/deeper":     {web, "are not allowed", false},
		"/services/":               {web, "has no valid service name", false},
		"/endpoints/web/a":         {`{"address":"10.0.0.256"}`, "10.0.0.256", false},
		"/endpoints/web/":          {`{"address":"10.0.0.1"}`, "needs an ID", false},
		"/endpoints/web/a b":       {`{"address":"10.0.0.1"}`, "is not valid: use only printable characters", false},
		"/endpoints/web/a/b":       {`{"address":"10.0.0.1"}`, "is not valid: use only printable characters", false},
		"/endpoints/web/\xff":      {`{"address":"10.0.0.1"}`, "is not valid: use only printable characters", false},
		"/endpoints/web":           {`{"address":"10.0.0.1"}`, "needs an ID", false},
		"/endpoints/web/big":       {`{"address":"10.0.0.1","zone":"` + strings.Repeat("z", 16<<10) + `"}`, "at most 16384 are allowed", false},
		"/overrides/web/10.0.0.1":  {`{}`, "needs weight or draining", false},
		"/overrides/web/10.0.0.2":  {`{"weight":-1}`, "weight", false},
		"/overrides/web/10.0.0.3":  {`{"weight":1,"expires":"tomorrow"}`, "needs a time such as", false},
		"/overrides/web/fd00:0::1": {`{"weight":1}`, `must be written as "fd00::1"`, false},
		"/overrides/web/all":       {`{"weight":1}`, "is not an endpoint's ADDRESS", false},
		"/vips/10.0.0.1":           {"", "must contain only the name of the service", false},
		"/vips/10.0.0.2":           {"web\n", "must contain only the name of the service", false},
		"/vips/10.0.0.3":           {`{"service":"web"}`, "must contain only the name of the service", false},
		"/vips/10.0.0.4":           {"\xff\x00", "must contain only the name of the service", false},
		"/vips/10.0.0.5":           {strings.Repeat("w", 2<<20-1000), "at most 16384 are allowed", false},
		"/vips/10.0.0.6":           {"web", "does not request it", true},
		"/vips/10.0.0.7":           {"gone", "does not exist", true},
		"/vips/10.0.0.08":          {"web", "is not an IP address", false},
		"/vips/fd00:0::1":          {"web", `must be written as "fd00::1"`, false},
		"/vips/::ffff:10.0.0.1":    {"web", `must be written as "10.0.0.1"`, false},
		"/vips/fe80::1%eth0":       {"web", "has a zone", false},
		"/vips/10.0.0.0/24":        {"web", "is a network", false},
		"/vips/":                   {"web", "is not an IP address", false},
	}
}

// TestHostileKeys writes malicious keys and values, one at a time. A problem must name each key,
// and no other object may be affected.
func TestHostileKeys(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{Flags: []string{"--max-request-bytes", "4194304"}})
	config := configAt(c, 0)
	p := &place{t: t, config: config}
	p.client = c.Client()
	p.put("/services/web", web)
	// The long limit for silence prevents reconnections. After a reconnection, only a full read
	// would find the keys that are names of folders.
	source := newSource(t, watch.Options{Config: config, Timing: hastened(silence(wait.Patience))})
	f := follow(t, source)
	before := f.wait("the first state", connected)
	for key, hostile := range hostileKeys() {
		p.put(key, hostile.text)
		after := f.wait("the problem of "+key, func(s store.Snapshot) bool { return len(s.Problems) > 0 })
		if wrong := hostile.describe(config.Prefix+key, after.Problems); wrong != "" {
			t.Error(wrong)
		}
		if after.Services.At("web") != before.Services.At("web") || after.Endpoints.Len() != 0 || after.Overrides.Len() != 0 {
			t.Errorf("%s: other objects changed", key)
		}
		p.remove(key)
		f.wait("the end of the problem of "+key, func(s store.Snapshot) bool { return len(s.Problems) == 0 && s.Services.Len() == 1 })
	}
}

// describe describes how the problems of a key differ from the wanted problem. It returns "" if
// they do not differ.
func (h hostile) describe(key string, problems []balancer.Problem) string {
	for _, p := range problems {
		if p.Origin.Key != key {
			continue
		}
		if !strings.Contains(p.Text+p.Field, h.want) || (p.Severity == balancer.SeverityWarning) != h.warning || len(p.Text) > 500 {
			return fmt.Sprintf("%s: got %q (%s, %s), want %q", key, p.Text, p.Field, p.Severity, h.want)
		}
		return ""
	}
	return fmt.Sprintf("%s is not told: %v", key, problems)
}

// TestHostileNames writes names that are as long as etcd permits, and names with control characters
// for terminals. In problems, these names must be shortened and escaped.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	long := strings.Repeat("x", 1_000_000)
	var fields strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&fields, `,"f%d":1`, i)
	}
	p.put("/services/"+long, "{}")
	p.put("/services/\x1b[2J", "{}")
	p.put("/services/a", `{"vips":["10.96.0.11"],"ports":[{"port":80}],"`+long+`":1}`)
	p.put("/services/b", `{"vips":["10.96.0.12"],"ports":[{"port":80}]`+fields.String()+`}`)
	s := follow(t, newSource(t, watch.Options{Config: p.config})).wait("the first state", connected)
	length := 0
	for _, problem := range s.Problems {
		length += len(problem.String())
		if text := problem.String(); strings.Contains(text, "\x1b") {
			t.Errorf("problem = %q, want no control characters", text)
		}
	}
	if length > 100_000 || s.Services.Len() != 3 {
		t.Errorf("problems = %d with %d bytes in total, services = %d; want at most 100000 bytes and 3 services", len(s.Problems), length, s.Services.Len())
	}
}

// TestHostileStart starts a source while etcd has malicious keys. A problem must name each invalid
// key, and the objects of valid keys must be served.
func TestHostileStart(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{Flags: []string{"--max-request-bytes", "4194304"}})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/web", web)
	for key, hostile := range hostileKeys() {
		p.put(key, hostile.text)
	}
	followed := follow(t, newSource(t, watch.Options{Config: p.config})).wait("the first state", connected)
	read, err := newWriter(t, p.config).Read(t.Context(), nil)
	if err := errors.Join(err, agree(followed, read)); err != nil {
		t.Errorf("the followed state differs from a read: %v", err)
	}
	for key, hostile := range hostileKeys() {
		if wrong := hostile.describe(p.config.Prefix+key, followed.Problems); wrong != "" {
			t.Error(wrong)
		}
	}
	if followed.Services.At("web") == nil || followed.Services.Len() != 2 || followed.Endpoints.Len() != 0 || followed.Overrides.Len() != 0 {
		t.Errorf("services = %d, endpoints = %d, overrides = %d, want only 2 services", followed.Services.Len(), followed.Endpoints.Len(), followed.Overrides.Len())
	}
}

// TestLastGood overwrites each kind of object with an invalid value. The last valid value must stay
// in use while there is an error. A new value that only causes a warning must be used.
func TestLastGood(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/web", web)
	p.put("/endpoints/web/a", `{"address":"10.0.0.1"}`)
	p.put("/overrides/web/10.0.0.1", `{"weight":5}`)
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	before := f.wait("the first state", connected)
	p.put("/services/web", `{"ports":1}`)
	p.put("/endpoints/web/a", `{}`)
	p.put("/overrides/web/10.0.0.1", `7`)
	broken := f.wait("three problems", func(s store.Snapshot) bool {
		keys := map[string]bool{}
		for _, p := range s.Problems {
			keys[p.Origin.Key] = true
		}
		return len(keys) == 3
	})
	if broken.Services != before.Services || broken.Endpoints != before.Endpoints || broken.Overrides != before.Overrides {
		t.Error("objects with an invalid value lost their last valid value")
	}
	p.put("/endpoints/web/a", `{"address":"10.0.0.2","rack":"7"}`)
	f.wait("an endpoint with a warning", func(s store.Snapshot) bool {
		e := s.Endpoints.At(balancer.EndpointID{Service: "web", ID: "a"})
		return e != nil && e.Address.String() == "10.0.0.2"
	})
	p.remove("/services/web")
	p.remove("/overrides/web/10.0.0.1")
	f.wait("the removal of the broken objects", func(s store.Snapshot) bool { return s.Services.Len()+s.Overrides.Len() == 0 && len(s.Problems) == 1 })
}

// TestChangedBack changes a value and immediately changes it back. If both changes are published
// together, the object must keep its pointer.
func TestChangedBack(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/endpoints/web/a", `{"address":"10.0.0.1"}`)
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	f.wait("the first state", connected)
	for range 20 { // most of these pairs of writes are published together, so nothing changes
		p.put("/endpoints/web/a", `{"address":"10.0.0.2"}`)
		f.reaches(p.put("/endpoints/web/a", `{"address":"10.0.0.1"}`))
	}
}

// TestOverrideLapses lets an override expire. The override must disappear from the snapshot,
// although etcd still has its key.
func TestOverrideLapses(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/overrides/web/10.0.0.1", `{"draining":true,"expires":"2020-01-01T00:00:00Z"}`)
	p.put("/overrides/web/10.0.0.2:8080", fmt.Sprintf(`{"weight":0,"by":"me","expires":%q}`, time.Now().Add(2*time.Second).Format(time.RFC3339Nano)))
	p.put("/overrides/web/fd00::1", `{"weight":3}`)
	f := follow(t, newSource(t, watch.Options{Config: p.config}))
	f.wait("the first state", func(s store.Snapshot) bool { return s.Connected && s.Overrides.Len() <= 2 })
	f.wait("the override to expire", func(s store.Snapshot) bool { return s.Overrides.Len() == 1 })
}

// TestDefaults replaces a source's defaults. The new defaults must apply to services that don't set
// the field.
func TestDefaults(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/a", web)
	p.put("/services/b", strings.Replace(web, "{", `{"scheduler":"rr",`, 1))
	source := newSource(t, watch.Options{Config: p.config, Defaults: map[string]any{"scheduler": "lc"}})
	f := follow(t, source)
	before := f.wait("the defaults", func(s store.Snapshot) bool {
		return s.Connected && s.Services.At("a").Scheduler == "lc"
	})
	source.SetDefaults(map[string]any{"scheduler": "random"})
	after := f.wait("the new defaults", func(s store.Snapshot) bool { return s.Services.At("a").Scheduler == balancer.Random })
	if after.Services.At("b") != before.Services.At("b") {
		t.Error("a service that sets the field got a new pointer")
	}
	source.SetDefaults(map[string]any{"scheduler": "fastest"})
	bad := f.wait("bad defaults", func(s store.Snapshot) bool { return len(s.Problems) > 0 })
	if bad.Services.At("a") != after.Services.At("a") {
		t.Error("the service changed after an error in the defaults")
	}
	source.SetDefaults(nil)
	f.wait("no defaults", func(s store.Snapshot) bool {
		return s.Services.At("a").Scheduler == balancer.WeightedRoundRobin && len(s.Problems) == 0
	})
}

// TestLeases lets the leases of all endpoints expire together, and later deletes an endpoint.
// Endpoints whose leases have expired must stay in use. The deleted endpoint must not.
func TestLeases(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/web", `{"vips":["10.96.0.10"],"ports":[{"port":80}]}`)
	register := func(id, text string) clientv3.LeaseID {
		lease, err := p.client.Grant(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		p.put("/endpoints/web/"+id, text, clientv3.WithLease(lease.ID))
		return lease.ID
	}
	a, b := register("a", `{"address":"10.0.0.1"}`), register("b", `{"address":"10.0.0.2"}`)
	f := followWithState(t, watch.Options{Config: p.config}, t.TempDir())
	before := f.wait("the first state", connected)
	if before.Endpoints.Len() != 2 {
		t.Fatalf("endpoints = %d, want 2", before.Endpoints.Len())
	}
	for _, lease := range []clientv3.LeaseID{a, b} { // revoking a lease has the same effect as its expiry
		if _, err := p.client.Revoke(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
	}
	kept := f.wait("both kept", func(s store.Snapshot) bool { return len(s.Problems) == 1 && s.Endpoints.Len() == 2 })
	if p := kept.Problems[0]; p.Service != "web" || p.Severity != balancer.SeverityWarning || !strings.Contains(p.Text, "2 endpoints stay in use") {
		t.Errorf("problem = %+v, want a warning about 2 endpoints that stay in use", p)
	}
	for id, e := range kept.Endpoints.All() {
		if e != before.Endpoints.At(id) {
			t.Errorf("%v got a new pointer", id)
		}
	}
	register("c", `{"address":"10.0.0.3"}`)
	f.wait("a third endpoint", func(s store.Snapshot) bool { return s.Endpoints.Len() == 3 })
	p.remove("/endpoints/web/c")
	f.wait("the removal of the third, whose lease is live", func(s store.Snapshot) bool { return s.Endpoints.Len() == 2 && len(s.Problems) == 1 })
	p.remove("/services/web")
	f.wait("the removal of all endpoints with the service", func(s store.Snapshot) bool { return s.Endpoints.Len()+s.Services.Len()+len(s.Problems) == 0 })
}

// TestManyLeases deletes many endpoints, so the source must check whether their leases have
// expired. It must do this over a few connections.
func TestManyLeases(t *testing.T) {
	t.Parallel()
	const n = 100
	_, relay, p := single(t, etcdkit.Options{})
	ends := make([]clientv3.Op, 0, n)
	for i := range n {
		lease, err := p.client.Grant(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("auto%d", i)
		p.put("/services/"+id, `{"vips":["10.96.1.`+fmt.Sprint(i)+`"],"ports":[{"port":80}]}`)
		p.put("/endpoints/"+id+"/a", fmt.Sprintf(`{"address":"10.0.0.%d"}`, i), clientv3.WithLease(lease.ID))
		ends = append(ends, clientv3.OpDelete(p.config.Prefix+"/endpoints/"+id+"/a"))
	}
	source, err := watch.New(watch.Options{Config: p.config, Patience: within}) // with a long patience, because the source opens another connection after a late answer
	if err != nil {
		t.Fatal(err)
	}
	f := follow(t, source)
	f.wait("the first state", func(s store.Snapshot) bool { return s.Connected && s.Endpoints.Len() == n+1 })
	before := relay.Connections()
	if _, err := p.client.Txn(t.Context()).Then(ends...).Commit(); err != nil {
		t.Fatal(err)
	}
	f.wait("the removal of the endpoints whose leases are live", func(s store.Snapshot) bool { return s.Endpoints.Len() == 1 && len(s.Problems) == 0 })
	if made := relay.Connections() - before; made > 3 { // the leases may be checked in several groups
		t.Errorf("new connections = %d, want at most 3", made)
	}
}
