package counters

import (
	"net/netip"
	"testing"

	"vipd/dataplane"
)

// TestUnansweredAddTo adds failures at a port that two dataplanes report, at a missing backend, and
// at a missing port. Each failure must be added exactly once.
func TestUnansweredAddTo(t *testing.T) {
	var u Unanswered
	one, two := netip.MustParseAddrPort("10.2.0.1:80"), netip.MustParseAddrPort("10.2.0.2:80")
	for _, k := range []BackendKey{
		{Port: Port{Service: "web", Name: "http"}, Addr: one}, {Port: Port{Service: "web", Name: "http"}, Addr: one},
		{Port: Port{Service: "web", Name: "http"}, Addr: two}, {Port: Port{Service: "api"}, Addr: one},
	} {
		u.Add(k)
	}
	for range 2 {
		got := u.AddTo([]dataplane.FrontendCount{
			{Service: "web", Port: "http", Backends: []dataplane.BackendCount{{Backend: one, Connections: 5}}},
			{Service: "web", Port: "http", Backends: []dataplane.BackendCount{{Backend: one, Connections: 3}}},
		})
		backends, frontends := map[BackendKey]uint64{}, map[Port]uint64{}
		for _, f := range got {
			p := Port{Service: f.Service, Name: f.Port}
			frontends[p] += f.Failures
			for _, b := range f.Backends {
				backends[BackendKey{Port: p, Addr: b.Backend}] += b.Failures
			}
		}
		web, api := Port{Service: "web", Name: "http"}, Port{Service: "api"}
		if frontends[web] != 3 || frontends[api] != 1 || backends[BackendKey{web, one}] != 2 || backends[BackendKey{web, two}] != 1 || backends[BackendKey{api, one}] != 1 {
			t.Errorf("frontends = %v, backends = %v; want web = 3 (backends 2 and 1) and api = 1", frontends, backends)
		}
	}
}
