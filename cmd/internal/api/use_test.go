package api

import (
	"testing"

	"vipd/balancer"
)

// TestUseOfPorts: a service is as well off as its worst port, and an endpoint that was removed is none of its own.
func TestUseOfPorts(t *testing.T) {
	var u Use
	for _, e := range []struct {
		port  string
		state balancer.BackendState
	}{
		{"http", balancer.Active}, {"http", balancer.Active}, {"https", balancer.Active}, {"https", balancer.Down}, {"https", balancer.Removed},
	} {
		u.Add(e.port, e.state)
	}
	if up, of := u.Worst(); up != 1 || of != 2 {
		t.Errorf("%d of %d are in use, want 1 of 2", up, of)
	}
}
