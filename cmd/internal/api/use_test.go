package api

import (
	"testing"

	"vipd/balancer"
)

// TestUsePerPort counts endpoints with several ports. Text must show ports with different counts
// separately.
func TestUsePerPort(t *testing.T) {
	type endpoint struct {
		port  string
		state balancer.BackendState
	}
	many := []endpoint{}
	for _, port := range []string{"a", "b", "c", "d"} {
		many = append(many, endpoint{port: port, state: balancer.Active})
	}
	for _, c := range []struct {
		name      string
		endpoints []endpoint
		text      string
		up, of    int
		none      bool
	}{
		{name: "no endpoint", text: "0/0", none: true},
		{name: "one port", endpoints: []endpoint{{state: balancer.Active}, {state: balancer.Down}}, text: "1/2", up: 1, of: 2},
		{
			name: "a removed endpoint", endpoints: []endpoint{{"http", balancer.Active}, {"https", balancer.Active}, {"https", balancer.Removed}},
			text: "1/1", up: 1, of: 1,
		},
		{name: "a dead port", endpoints: []endpoint{{"http", balancer.Active}, {"metrics", balancer.Down}}, text: "http 1/1, metrics 0/1", of: 1},
		{name: "dead ports", endpoints: []endpoint{{"http", balancer.Down}, {"metrics", balancer.Down}}, text: "0/1", of: 1, none: true},
		{name: "many ports", endpoints: append(many, endpoint{"metrics", balancer.Down}), text: "4 ports 1/1, metrics 0/1", of: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var u Use
			for _, e := range c.endpoints {
				u.Add(e.port, e.state)
			}
			if got := u.Text("/"); got != c.text {
				t.Errorf("Text = %q, want %q", got, c.text)
			}
			if up, total := u.Worst(); up != c.up || total != c.of {
				t.Errorf("Worst = %d of %d, want %d of %d", up, total, c.up, c.of)
			}
			if got := u.None(); got != c.none {
				t.Errorf("None = %t, want %t", got, c.none)
			}
		})
	}
}
