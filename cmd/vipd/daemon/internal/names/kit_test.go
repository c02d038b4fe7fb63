package names_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/names"
	"vipd/dataplane/resolve"
	"vipd/store/statedir"
)

// TestMain checks that no goroutine outlives the tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a Names with services, and with DNS servers that return the same answer for every name.
type node struct {
	*names.Names
	in    balancer.Inputs
	limit int
	end   func()
	// silent makes every lookup wait until it is canceled.
	silent bool

	mu      sync.Mutex
	next    resolve.Answer
	asked   map[string][]time.Duration // when each name was queried, since the start
	changes int
	start   time.Time
}

// startNode starts a node with the state directory path.
func startNode(t *testing.T, path string) *node {
	t.Helper()
	n := &node{limit: 10_000, asked: map[string][]time.Duration{}, start: time.Now()}
	dir := statedir.New(path, func() {})
	n.Names = names.New(names.Options{
		StateDir: dir, Answer: n.answer, MaxEtcd: func() int { return n.limit },
		Uncheckable: func(balancer.Target) bool { return false },
		Kick: func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.changes++
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	n.end = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	}
	return n
}

func (n *node) answer(ctx context.Context, l balancer.Lookup, last []balancer.LookupRecord) resolve.Answer {
	if n.silent {
		<-ctx.Done()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[l.Name] = append(n.asked[l.Name], time.Since(n.start))
	a := n.next
	if a.Failure != "" {
		a.Records = last
	}
	return a
}

// answers sets the answer of the DNS servers to all later queries.
func (n *node) answers(failure string, ttl time.Duration, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next = resolve.Answer{Resolution: balancer.Resolution{Failure: failure}, TTL: ttl}
	for _, a := range addresses {
		n.next.Records = append(n.next.Records, balancer.LookupRecord{Addr: netip.MustParseAddr(a)})
	}
}

// times returns the times at which a name was looked up since the last call.
func (n *node) times(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer delete(n.asked, name)
	return fmt.Sprint(n.asked[name])
}

// service adds a service whose endpoint has the DNS name host.
func (n *node) service(name balancer.Name, host string, vips ...string) *balancer.Service {
	s := &balancer.Service{Name: name, Ports: []balancer.Port{{Port: 80, TargetPort: 8080}}}
	if host != "" {
		s.Endpoints = []balancer.Endpoint{{Name: host}}
	}
	for _, vip := range vips {
		s.VIPs = append(s.VIPs, netip.MustParseAddr(vip))
	}
	n.in.Services = n.in.Services.Set(name, s)
	return s
}

// discovers adds a service that discovers its endpoints through SRV records.
func (n *node) discovers(name balancer.Name, dns string, interval time.Duration, vips ...string) {
	n.service(name, "", vips...).Discover = &balancer.Discover{DNS: dns, Interval: interval}
}

// found returns the addresses and failures of all lookups of a service. Addresses that are only
// kept until new addresses pass checks are in parentheses.
func (n *node) found(name balancer.Name, complete bool) string {
	var words []string
	n.in.Resolved = n.Resolved(&n.in, complete)
	n.in.Resolved = n.Checked(&n.in)
	for id, r := range n.in.Resolved.All() {
		if id.Service != name {
			continue
		}
		for _, m := range r.Records {
			words = append(words, m.Addr.String())
		}
		for _, m := range r.Former {
			words = append(words, "("+m.Addr.String()+")")
		}
		if r.Failure != "" {
			words = append(words, "! "+r.Failure)
		}
	}
	return strings.Join(words, " ")
}
