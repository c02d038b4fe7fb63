package main

import (
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
)

// TestEjectedEndpointSaysWhy: the wide table and the description have the reason, though nothing is checked; the narrow
// one has the state alone.
func TestEjectedEndpointSaysWhy(t *testing.T) {
	until := time.Date(2026, 3, 4, 12, 0, 30, 0, time.Local)
	rows := []api.Endpoint{
		{Service: "web", Address: "192.168.1.11:8080", State: balancer.Active, Weight: 1},
		{Service: "web", Address: "192.168.1.12:8080", State: balancer.Ejected, Ejection: &balancer.Ejection{Until: until, Cause: "connection refused"}},
	}
	c := &call{}
	want := "connects fail: connection refused; ejected until 12:00:30 at the latest"
	for _, got := range []string{
		endpointsTable(c, rows).Text(table.Form{Wide: true}), c.describedChecks(&api.Service{Endpoints: rows}).Text(table.Form{}),
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("got\n%s\nwant %q in it once", got, want)
		}
	}
	if got := endpointsTable(c, rows).Text(table.Form{}); !strings.Contains(got, " ejected ") {
		t.Errorf("got\n%s\nwant the state in it", got)
	}
}
