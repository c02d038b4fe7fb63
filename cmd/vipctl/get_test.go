package main

import (
	"strings"
	"testing"

	"vipd/cmd/internal/api"
)

// TestIDsOnce lists an endpoint that serves two ports at one address. The endpoint's name must
// appear only once.
func TestIDsOnce(t *testing.T) {
	all := []api.Endpoint{
		{Service: "dns", Port: "tcp", Address: "192.168.1.21:53"}, {Service: "dns", Port: "udp", Address: "192.168.1.21:53"}, {Service: "web", Address: "192.168.1.21:53"},
	}
	if got, want := idLines(all, endpointID), "dns/192.168.1.21:53\nweb/192.168.1.21:53\n"; got != want {
		t.Errorf("names = %q, want %q", got, want)
	}
}

// TestPlainService shortens service/NAME, alone and after a kind. Only these two forms may become
// NAME.
func TestPlainService(t *testing.T) {
	for typed, want := range map[string]string{
		"get endpoints service/web":    "endpoints web",
		"get ep svc/web":               "endpoints web",
		"get svc/web":                  "services web",
		"get ep web/10.0.0.1":          "endpoints web/10.0.0.1",
		"get ep service/10.0.0.1":      "endpoints service/10.0.0.1",
		"get ep service/[fd00::1]:80":  "endpoints service/[fd00::1]:80",
		"drain service/web 10.0.0.1":   "web 10.0.0.1",
		"drain web/10.0.0.1":           "web 10.0.0.1",
		"drain service/10.0.0.1":       "service 10.0.0.1",
		"drain web 10.0.0.1/10.0.0.32": "web 10.0.0.1/10.0.0.32",
	} {
		verb, rest, _ := strings.Cut(typed, " ")
		parse := endpointArgs
		if verb == "get" {
			parse = withKind
		}
		if got := strings.Join(parse(strings.Split(rest, " ")), " "); got != want {
			t.Errorf("%q: words = %q, want %q", typed, got, want)
		}
	}
}
