package main

import (
	"testing"

	"vipd/cmd/internal/api"
)

// TestIDsOnce: an endpoint that serves two ports at one address has one name.
func TestIDsOnce(t *testing.T) {
	all := []api.Endpoint{
		{Service: "dns", Port: "tcp", Address: "192.168.1.21:53"}, {Service: "dns", Port: "udp", Address: "192.168.1.21:53"}, {Service: "web", Address: "192.168.1.21:53"},
	}
	if got, want := idLines(all, endpointID), "dns/192.168.1.21:53\nweb/192.168.1.21:53\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
