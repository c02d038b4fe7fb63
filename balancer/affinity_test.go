package balancer

import (
	"net/netip"
	"slices"
	"testing"
)

func scoped(scope AffinityScope, backends ...string) *Frontend {
	f := &Frontend{Key: Key{netip.MustParseAddr("10.96.0.1"), 80, TCP}, Service: "web", AffinityTimeout: 1, AffinityScope: scope}
	for _, b := range backends {
		f.Backends = append(f.Backends, Backend{Addr: netip.MustParseAddrPort(b), State: Active})
	}
	return f
}

// TestAffinityEndpointFindsBackend converts each backend to the form in which affinity stores it,
// and back. If the scope covers several ports, a frontend with other target ports must find the
// same backends.
func TestAffinityEndpointFindsBackend(t *testing.T) {
	all := []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:81", "10.0.0.3:80"}
	others := []string{"10.0.0.1:90", "10.0.0.2:90", "10.0.0.2:99", "10.0.0.3:1"}
	for _, scope := range []AffinityScope{"", PortScope, ServiceScope, VIPScope} {
		f, g := scoped(scope, all...), scoped(scope, others...)
		for i := range all {
			e := f.AffinityEndpoint(f.Backends[i].Addr)
			if got := f.AffinityBackend(e); got != i {
				t.Errorf("scope %q: AffinityBackend(%s) = %d, want %d", scope, e, got, i)
			}
			want := -1
			if scope.beyondPort() {
				want = i
			}
			if got := g.AffinityBackend(e); got != want {
				t.Errorf("scope %q, frontend with other target ports: AffinityBackend(%s) = %d, want %d", scope, e, got, want)
			}
		}
		for _, missing := range []string{"10.0.0.0:80", "10.0.0.2:2", "10.0.0.9:0"} {
			if got := f.AffinityBackend(netip.MustParseAddrPort(missing)); got != -1 {
				t.Errorf("scope %q: AffinityBackend(%s) = %d, want -1", scope, missing, got)
			}
		}
	}
}

// TestAffinityMemoriesOfScopes compares the affinity memories of frontends on one VIP. The scope
// must decide whether frontends share a memory if they differ in port or service. Frontends with
// different prefixes must never share a memory.
func TestAffinityMemoriesOfScopes(t *testing.T) {
	for _, c := range []struct {
		scope           AffinityScope
		ports, services bool
	}{{PortScope, false, false}, {ServiceScope, true, false}, {VIPScope, true, true}} {
		f, port, service, prefix := scoped(c.scope), scoped(c.scope), scoped(c.scope), scoped(c.scope)
		port.Key.Port, service.Service, prefix.AffinityPrefix = 81, "files", 24
		service.Key.Port = 82
		shares := func(g *Frontend) bool { return slices.Equal(f.AffinityMemories(), g.AffinityMemories()) }
		if shares(port) != c.ports || shares(service) != c.services || shares(prefix) {
			t.Errorf("scope %s: ports share = %t, services share = %t, prefixes share = %t; want %t, %t, false",
				c.scope, shares(port), shares(service), shares(prefix), c.ports, c.services)
		}
	}
	f := scoped(VIPScope)
	f.Foreign = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	if n := len(f.AffinityMemories()); n != 2 || !f.IsForeign(netip.MustParseAddrPort("10.0.0.9:0")) || f.IsForeign(netip.MustParseAddrPort("10.0.0.1:0")) {
		t.Errorf("frontend with a foreign endpoint: memories = %d, want 2, where only 10.0.0.9 is foreign", n)
	}
}

// TestAffinityClientGroups computes clients' keys in the affinity memory. Each key must be the
// client's address, masked by the prefix. A prefix of 0 must keep the whole address.
func TestAffinityClientGroups(t *testing.T) {
	for _, c := range []struct {
		client string
		prefix int
		want   string
	}{
		{"10.1.2.3", 0, "10.1.2.3"}, {"10.1.2.3", 24, "10.1.2.0"}, {"fd00::1:2", 64, "fd00::"}, {"fe80::1%eth0", 0, "fe80::1"},
		{"::ffff:10.1.2.3", 24, "10.1.2.0"},
	} {
		f := Frontend{AffinityPrefix: c.prefix}
		if got := f.AffinityClient(netip.MustParseAddr(c.client)); got != netip.MustParseAddr(c.want) {
			t.Errorf("AffinityClient(%s) with prefix %d = %s, want %s", c.client, c.prefix, got, c.want)
		}
	}
}
