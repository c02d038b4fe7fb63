package names_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
)

// both holds an IPv4 VIP and an IPv6 VIP.
var both = []string{"10.96.0.10", "fd00::10"}

// TestChangedDefinition changes the VIPs of a service, and then the name of its SRV records, while
// DNS fails. Endpoints must stay if a VIP has their address family, even after a restart.
func TestChangedDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		n := startNode(t, path)
		n.answers("", time.Hour, "192.0.2.1", "2001:db8::1")
		n.discovers("db", "a.example.org", time.Hour, both...)
		n.found("db", true)
		synctest.Wait()
		n.found("db", true)
		n.end()

		for _, c := range []struct {
			dns  string
			vips []string
			want string
		}{
			{"a.example.org", both, "192.0.2.1 2001:db8::1 ! SERVFAIL"},
			{"b.example.org", both, "(192.0.2.1) (2001:db8::1) ! SERVFAIL"},
			{"b.example.org", both[:1], "(192.0.2.1) ! SERVFAIL"},
			{"b.example.org", both, "(192.0.2.1) ! SERVFAIL"},
			{"c.example.org", both, "(192.0.2.1) ! SERVFAIL"},
		} {
			n = startNode(t, path)
			n.answers("SERVFAIL", 0)
			n.discovers("db", c.dns, time.Hour, c.vips...)
			n.found("db", true)
			synctest.Wait()
			if got := n.found("db", true); got != c.want {
				t.Errorf("discover.dns = %s and vips = %s: endpoints %q, want %q", c.dns, c.vips, got, c.want)
			}
			n.end()
		}
		n = startNode(t, path)
		defer n.end()
		n.discovers("db", "c.example.org", time.Hour, both...)
		n.answers("SERVFAIL", 0)
		n.discovers("other", "d.example.org", time.Hour, "10.96.0.11")
		if got := n.found("other", true); got != "" {
			t.Errorf("new service while DNS fails: endpoints = %s, want none", got)
		}
		n.answers("", time.Hour, "192.0.2.2")
		n.discovers("db", "e.example.org", time.Hour, both...)
		n.found("db", true)
		synctest.Wait()
		if got, want := n.found("db", true), "192.0.2.2"; got != want {
			t.Errorf("after a valid answer: endpoints = %q, want %q", got, want)
		}
	})
}

// TestStoreIsReadLate starts twice while DNS fails, and the store at first lacks a service. The
// answers for that service must be kept until the store is readable.
func TestStoreIsReadLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		n := startNode(t, path)
		n.answers("", time.Hour, "192.0.2.1")
		n.discovers("db", "a.example.org", time.Hour, both...)
		n.found("db", true)
		synctest.Wait()
		n.found("db", true)
		n.end()

		for range 2 {
			n = startNode(t, path)
			n.answers("SERVFAIL", 0)
			n.service("local", "local.example.org", "10.96.0.11")
			n.found("local", false)
			n.end()
		}
		n = startNode(t, path)
		n.answers("SERVFAIL", 0)
		n.service("local", "local.example.org", "10.96.0.11")
		n.found("local", false)
		n.discovers("db", "a.example.org", time.Hour, both...)
		n.found("db", true)
		synctest.Wait()
		if got, want := n.found("db", true), "192.0.2.1 ! SERVFAIL"; got != want {
			t.Errorf("service that was read late: endpoints = %q, want %q", got, want)
		}
		n.in.Services = n.in.Services.Delete("db")
		n.found("db", true)
		n.end()

		n = startNode(t, path)
		n.answers("SERVFAIL", 0)
		defer n.end()
		n.discovers("db", "a.example.org", time.Hour, both...)
		if got := n.found("db", false); strings.Contains(got, "192.0.2.1") {
			t.Errorf("removed service: endpoints = %s, want none", got)
		}
	})
}

// TestFormerEndpoints replaces all addresses of a name. The old address must stay in use until a
// check of a new address passes, even after a restart, but no longer.
func TestFormerEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		n := startNode(t, path)
		define := func() { n.service("db", "db.example.org", "10.96.0.10").Health = &balancer.Health{} }
		verdict := func(a string, v balancer.Verdict) {
			n.in.Health = n.in.Health.Set(balancer.Target{Service: "db", Addr: netip.MustParseAddr(a), Port: 8080}, v)
		}
		shows := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := n.found("db", true); got != want {
				t.Errorf("endpoints = %q, want %q", got, want)
			}
		}
		define()
		n.answers("", time.Second, "192.0.2.1")
		n.found("db", true)
		shows("192.0.2.1")
		verdict("192.0.2.1", balancer.HealthUp)
		n.answers("", time.Second, "192.0.2.2", "192.0.2.3")
		time.Sleep(time.Second)
		shows("192.0.2.2 192.0.2.3 (192.0.2.1)")
		verdict("192.0.2.2", balancer.HealthDown)
		shows("192.0.2.2 192.0.2.3 (192.0.2.1)")
		health := n.in.Health
		n.end()

		n = startNode(t, path)
		n.answers("", time.Second, "192.0.2.4")
		define()
		n.in.Health = health
		n.found("db", true)
		shows("192.0.2.4 (192.0.2.1)") // the previous answer is dropped, because its address passed no check
		n.answers("", time.Second, "192.0.2.1", "192.0.2.5")
		time.Sleep(time.Second)
		shows("192.0.2.1 192.0.2.5")
		n.answers("", time.Second, "192.0.2.6")
		time.Sleep(time.Second)
		shows("192.0.2.6 (192.0.2.1)")
		verdict("192.0.2.6", balancer.HealthUp)
		shows("192.0.2.6")
		n.end()
	})
}

// TestEtcdLimit defines services in etcd that use more host names than the limit allows. The excess
// names must not be looked up until other names are removed. Names that a service from a file also
// uses must not count.
func TestEtcdLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, t.TempDir())
		defer n.end()
		n.limit = 2
		n.answers("", time.Hour, "192.0.2.1")
		inEtcd := func(name balancer.Name, host string) {
			n.service(name, host, "10.96.0.10").Origin.Key = "/vipd/services/" + string(name)
		}
		shows := func(name balancer.Name, want string) {
			t.Helper()
			n.found(name, true)
			synctest.Wait()
			if got := n.found(name, true); got != want {
				t.Errorf("service %s: endpoints = %q, want %q", name, got, want)
			}
		}
		const refused = "! not looked up, because services from etcd may use at most 2 names (resolver.max_names)"
		n.service("file", "shared", "10.96.0.11")
		n.found("file", true)
		inEtcd("a", "shared")
		n.found("a", true)
		for _, name := range []balancer.Name{"b", "c", "d"} {
			inEtcd(name, string(name))
			n.found(name, true)
		}
		inEtcd("e", "b")
		shows("a", "192.0.2.1")
		shows("b", "192.0.2.1")
		shows("c", "192.0.2.1")
		shows("d", refused)
		shows("e", "192.0.2.1")
		if got := n.times("d"); got != "[]" {
			t.Errorf("d was looked up at %s, want never", got)
		}
		n.in.Services = n.in.Services.Delete("b")
		shows("d", refused) // service "e" uses the same name as "b"
		n.in.Services = n.in.Services.Delete("file")
		n.in.Services = n.in.Services.Delete("e")
		shows("d", refused) // the name "shared" now counts, because a file no longer uses it
		n.in.Services = n.in.Services.Delete("c")
		shows("d", "192.0.2.1")
		inEtcd("f", "f")
		shows("f", refused)
		n.limit = 3
		shows("f", "192.0.2.1")
	})
}

// TestAwaitsOwnNames requests a lookup that never completes. Only services in the node's own files
// may make the node wait for it.
func TestAwaitsOwnNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, t.TempDir())
		defer n.end()
		n.silent = true
		service := n.service("web", "web.example.org", "10.96.0.10")
		for key, want := range map[string]bool{"/vipd/services/web": false, "": true} {
			changed := *service
			changed.Origin.Key = key
			n.in.Services = n.in.Services.Set("web", &changed)
			n.found("web", true)
			synctest.Wait()
			if got := n.Awaits(); got != want {
				t.Errorf("key %q: Awaits() = %t, want %t", key, got, want)
			}
		}
	})
}
