package main

import (
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
)

// TestEjectedEndpointSaysWhy: the table has the reason, though nothing is checked.
func TestEjectedEndpointSaysWhy(t *testing.T) {
	until := time.Date(2026, 3, 4, 12, 0, 30, 0, time.Local)
	rows := []api.Endpoint{
		{Service: "web", Address: "192.168.1.11:8080", State: balancer.Active, Weight: 1},
		{Service: "web", Address: "192.168.1.12:8080", State: balancer.Ejected, Ejection: &balancer.Ejection{Until: until, Cause: "connection refused"}},
	}
	got := endpointsTable(&call{}, rows).Text(table.Form{})
	want := "connects fail: connection refused; ejected until 12:00:30 at the latest"
	if !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant %q in it", got, want)
	}
}
