package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestUnansweredEndpointIsAProblem serves two endpoints. One of them has no route back to the
// client. The problem must name this endpoint, the likely cause and the commands that fix it. The
// first line of vipctl explain must report the problem. All views must count unanswered connections
// for this endpoint, and none for the other endpoint.
func TestUnansweredEndpointIsAProblem(t *testing.T) {
	g := newGateway(t)
	third := g.Add("s3")
	g.Link(g.Host(), third, "10.2.2.1/24", "10.2.2.2/24")
	third.Unreachable("10.1.0.0/24")
	third.Echo("tcp", "s3", netip.MustParseAddrPort("10.2.2.2:8080"))
	program.Save(t, g.file, strings.Replace(settings("nftables", "nft"), `http = ""`, `http = "127.0.0.1:0"`, 1)+`
[services.web]
vips = ["10.96.0.10"]
ports = [{ port = 80, target_port = 8080 }]
endpoints = [{ address = "10.2.0.2" }, { address = "10.2.2.2" }]
`)
	g.start()
	connect := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if c, err := g.client.Dial(ctx, "tcp", "10.96.0.10:80"); err == nil {
			_ = c.Close()
		}
	}
	var found *balancer.Problem
	wait.For(t, 2*time.Minute, "the problem", func() bool {
		connect()
		s, err := g.api.Status(t.Context())
		for i := range s.Problems {
			if s.Problems[i].Kind == balancer.Unanswered {
				found = &s.Problems[i]
			}
		}
		return err == nil && found != nil
	})
	if found.Service != "web" || !strings.HasPrefix(found.Text, "10.2.2.2:8080 did not answer ") {
		t.Errorf("problem = %s, want a problem with 10.2.2.2:8080 in service \"web\"", found)
	}
	for _, part := range []string{"`ip route replace 10.1.0.2 via 10.2.2.1` on the endpoint", `snat = "always" for service web`} {
		if !strings.Contains(found.Text, part) {
			t.Errorf("problem = %q, want a text that contains %q", found.Text, part)
		}
	}
	g.countsUnanswered("10.2.0.2:8080", "10.2.2.2:8080")
	key := balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: balancer.TCP}
	e, err := g.api.Explain(t.Context(), netip.MustParseAddrPort("10.1.0.2:0"), key, false)
	if want := "served by one of 2 endpoints, but 10.2.2.2:8080 did not answer "; err != nil || !strings.HasPrefix(e.Summary, want) {
		t.Errorf("explain: summary = %q, error = %v, want %q", e.Summary, err, want)
	}
}

// countsUnanswered checks that the views count unanswered connections for the endpoint silent, and
// none for the endpoint healthy.
func (g *gateway) countsUnanswered(healthy, silent string) {
	g.t.Helper()
	endpoints, err := g.api.Endpoints(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	traffic, err := g.api.Traffic(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	count := map[string][]uint64{}
	for _, e := range endpoints {
		count[e.Address] = append(count[e.Address], e.Unanswered)
	}
	for _, e := range traffic.Services[0].Endpoints {
		count[e.Address] = append(count[e.Address], e.Unanswered)
	}
	if n := count[silent]; len(n) != 2 || n[0] == 0 || n[1] == 0 || traffic.Services[0].Unanswered == 0 {
		g.t.Errorf("unanswered connections to %s = %v, to its service = %d, want more than 0", silent, n, traffic.Services[0].Unanswered)
	}
	if n := count[healthy]; len(n) != 2 || n[0] != 0 || n[1] != 0 {
		g.t.Errorf("unanswered connections to the healthy endpoint %s = %v, want two counts of 0", healthy, n)
	}
	metrics, page := g.page("/metrics"), g.page("/services/web")
	series := func(endpoint string) string {
		return fmt.Sprintf("vipd_endpoint_unanswered_total{endpoint=%q,service=\"web\"} ", endpoint)
	}
	if !strings.Contains(metrics, series(healthy)+"0\n") || !strings.Contains(metrics, series(silent)) || strings.Contains(metrics, series(silent)+"0\n") {
		g.t.Errorf("metrics =\n%s\nwant the counts of both endpoints", metrics)
	}
	if !strings.Contains(page, "did not answer") || !strings.Contains(page, `<td class="n notice">`) {
		g.t.Errorf("page =\n%s\nwant the count of unanswered connections", page)
	}
}

func (g *gateway) page(path string) string {
	g.t.Helper()
	r, err := http.Get("http://" + g.daemon.Web().String() + path)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(text)
}
