package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/modes"
	"vipd/store/tomlfile"
	"vipd/test/dnskit"
	"vipd/test/wait"
)

// namedServices defines n services with one endpoint each, whose address is a DNS name. Another
// service, "found", has endpoints from a program. server is the address of the DNS server.
func namedServices(t *testing.T, server string, n int) *localDefinitions {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "mode = \"userspace\"\n[resolver]\nservers = [%q]\n[addresses]\nallowed_endpoints = [\"127.0.0.0/8\"]\n", server)
	for i := range n {
		fmt.Fprintf(&b, "[services.web%d]\nvips = [\"10.96.0.%d\"]\nports = [{ port = 80 }]\nendpoints = [{ address = \"web%[1]d.test.\" }]\n", i, i+1)
	}
	b.WriteString("[services.found]\nvips = [\"10.96.1.1\"]\nports = [{ port = 80 }]\ndiscover = { exec = [\"/nonexistent\"] }\n")
	d := definitionsOf("vipd.toml", tomlfile.LoadText("vipd.toml", []byte(b.String())))
	for _, p := range d.problems {
		t.Logf("problem = %s, want none", p)
	}
	if d.services.Len() != n+1 {
		t.Fatalf("services = %d, want %d", d.services.Len(), n+1)
	}
	return d
}

// TestLookUp looks up names with addresses in 127.0.0.0/8. The addresses must be used, because
// addresses.allowed_endpoints permits them.
func TestLookUp(t *testing.T) {
	const n = 3
	server := dnskit.New(t, "127.0.0.1")
	var records []string
	for i := range n {
		records = append(records, fmt.Sprintf("web%d.test. 60 A 127.0.0.9", i))
	}
	server.Set(t, records...)
	d := namedServices(t, server.Address, n)
	if unrun := d.lookUp(t.Context()); !slices.Equal(unrun, []string{"found"}) {
		t.Errorf("services whose programs did not run = %q, want only the service \"found\"", unrun)
	}
	mode, _ := modes.Find("userspace")
	found := 0
	for _, f := range d.compile("", mode.Capabilities()) {
		for _, b := range f.Backends {
			if b.Addr == netip.MustParseAddrPort("127.0.0.9:80") {
				found++
			}
		}
	}
	if found != n {
		t.Errorf("endpoints found = %d, want %d; problems: %v", found, n, d.problems)
	}
}

// TestLookUpAtOnce sends more than maxLookups queries to a DNS server that never answers. The
// server must receive maxLookups queries at once, and the lookups must stop when ctx is canceled.
func TestLookUpAtOnce(t *testing.T) {
	const n = maxLookups + 10
	server := dnskit.New(t, "127.0.0.1")
	server.Break("*", dnskit.Silence)
	d := namedServices(t, server.Address, n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.lookUp(ctx)
	}()
	wait.For(t, 10*time.Second, "simultaneous lookups", func() bool {
		asked := 0
		for i := range n {
			asked += min(1, server.Asked(fmt.Sprintf("web%d.test.", i)))
		}
		return asked >= maxLookups
	})
	cancel()
	<-ended
	if d.resolved.Len() != n {
		t.Errorf("lookups with an outcome = %d, want %d", d.resolved.Len(), n)
	}
}
