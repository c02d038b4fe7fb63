package names_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/names"
	"vipd/dataplane/resolve"
	"vipd/store/statedir"
	"vipd/test/wait"
)

// node is a Names with a store that has services.
type node struct {
	*names.Names
	in  balancer.Inputs
	end func()
}

// start starts a node on a state directory. Each lookup finds answer.
func start(t *testing.T, path string, answer balancer.Resolution) *node {
	t.Helper()
	dir := statedir.New(path, func() {})
	n := &node{Names: names.New(names.Options{StateDir: dir, Kick: func() {}, Answer: func(_ context.Context, _ balancer.Lookup, last []balancer.Member) resolve.Answer {
		if answer.Failure != "" {
			return resolve.Answer{Resolution: balancer.Resolution{Members: last, Failure: answer.Failure}}
		}
		return resolve.Answer{Resolution: answer, TTL: time.Hour}
	}})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	n.end = func() {
		cancel()
		<-ended
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	}
	return n
}

// define defines a service that discovers its endpoints by SRV records, for VIPs.
func (n *node) define(name balancer.Name, dns string, vips ...string) {
	s := &balancer.Service{Name: name, Discover: &balancer.Discover{DNS: dns}}
	for _, vip := range vips {
		s.VIPs = append(s.VIPs, netip.MustParseAddr(vip))
	}
	n.in.Services = n.in.Services.Set(name, s)
}

// found returns the addresses of the only lookup of a service.
func (n *node) found(name balancer.Name, complete bool) string {
	var words []string
	for id, r := range n.Resolved(&n.in, complete).All() {
		if id.Service == name {
			for _, m := range r.Members {
				words = append(words, m.Addr.String())
			}
		}
	}
	return strings.Join(words, " ")
}

// good is an answer with an address of each family.
var good = balancer.Resolution{Members: []balancer.Member{{Addr: netip.MustParseAddr("192.0.2.1")}, {Addr: netip.MustParseAddr("2001:db8::1")}}}

// TestChangedDefinition changes the VIPs of a service, then the name of its SRV records, while DNS
// fails. The endpoints in the families of the VIPs must stay.
func TestChangedDefinition(t *testing.T) {
	path := t.TempDir()
	n := start(t, path, good)
	n.define("db", "a.example.org", "10.96.0.10", "fd00::10")
	wait.For(t, 10*time.Second, "an answer", func() bool { return n.found("db", true) != "" })
	n.end()

	n = start(t, path, balancer.Resolution{Failure: "SERVFAIL"})
	defer func() { n.end() }()
	for _, c := range []struct {
		dns  string
		vips []string
		want string
	}{
		{"a.example.org", []string{"10.96.0.10", "fd00::10"}, "192.0.2.1 2001:db8::1"},
		{"b.example.org", []string{"10.96.0.10", "fd00::10"}, "192.0.2.1 2001:db8::1"},
		{"b.example.org", []string{"10.96.0.10"}, "192.0.2.1"},
		{"b.example.org", []string{"10.96.0.10", "fd00::10"}, "192.0.2.1"},
		{"c.example.org", []string{"10.96.0.10", "fd00::10"}, "192.0.2.1"},
	} {
		n.define("db", c.dns, c.vips...)
		if got := n.found("db", true); got != c.want {
			t.Errorf("discover.dns = %s and vips = %s: endpoints %q, want %q", c.dns, c.vips, got, c.want)
		}
	}
	n.define("other", "d.example.org", "10.96.0.11")
	if got := n.found("other", true); got != "" {
		t.Errorf("another service starts with the endpoints %s, want none", got)
	}
}

// TestStoreIsReadLate starts twice while DNS fails, with a store that is incomplete at first. The
// answers of the missing service must be kept until the store was readable.
func TestStoreIsReadLate(t *testing.T) {
	path := t.TempDir()
	n := start(t, path, good)
	n.define("db", "a.example.org", "10.96.0.10", "fd00::10")
	wait.For(t, 10*time.Second, "an answer", func() bool { return n.found("db", true) != "" })
	n.end()

	for range 2 {
		n = start(t, path, balancer.Resolution{Failure: "SERVFAIL"})
		n.define("local", "local.example.org", "10.96.0.11")
		n.found("local", false)
		n.end()
	}
	n = start(t, path, balancer.Resolution{Failure: "SERVFAIL"})
	n.define("local", "local.example.org", "10.96.0.11")
	n.found("local", false)
	n.define("db", "a.example.org", "10.96.0.10", "fd00::10")
	if got, want := n.found("db", true), "192.0.2.1 2001:db8::1"; got != want {
		t.Errorf("the service that was read late has the endpoints %q, want %q", got, want)
	}
	n.in.Services = n.in.Services.Delete("db")
	n.found("db", true)
	n.end()

	n = start(t, path, balancer.Resolution{Failure: "SERVFAIL"})
	defer n.end()
	n.define("db", "a.example.org", "10.96.0.10", "fd00::10")
	if got := n.found("db", false); got != "" {
		t.Errorf("a removed service has the endpoints %s again, want none", got)
	}
}
