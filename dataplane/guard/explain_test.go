package guard

import (
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
)

// TestSourceOfClients explains frontends of a mode that terminates connections. Endpoints must see
// the client's address only if the frontend has source = "client" and replies can return through
// this node.
func TestSourceOfClients(t *testing.T) {
	for _, c := range []struct {
		name   string
		source balancer.SourceAddress
		path   Path
		want   bool
	}{
		{"node", balancer.NodeSource, Path{In: 1, Out: 2}, true},
		{"client", balancer.ClientSource, Path{In: 1, Out: 2}, false},
		{"one interface", balancer.ClientSource, Path{In: 1, Out: 1}, true},
		{"a program of this node", balancer.ClientSource, Path{Local: true, Out: 2}, true},
		{"an endpoint on this node", balancer.ClientSource, Path{In: 1, EndpointLocal: true}, true},
	} {
		k, err := balancer.ParseKey("10.96.0.10:80/tcp")
		if err != nil {
			t.Fatal(err)
		}
		f := balancer.Frontend{Key: k, Policy: balancer.Policy{Source: c.source}}
		if node, why, lost := SourceOf(&f, dataplane.Needs{}, c.path); node != c.want || lost {
			t.Errorf("%s: SourceOf = %t, %q, %t; want %t first", c.name, node, why, lost, c.want)
		}
	}
}
