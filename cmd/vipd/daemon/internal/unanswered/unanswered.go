package unanswered

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
	"vipd/dataplane/explain"
)

// Options configures a Watch.
type Options struct {
	// Counts returns the counts for each service port.
	Counts func() map[traffic.Port]dataplane.FrontendCount
	// Service returns the service called name, or nil if it is not served.
	Service func(name balancer.Name) *balancer.Service
	// Health returns the verdict of an endpoint's checks.
	Health func(balancer.Target) balancer.Verdict
	// Source returns the address from which this host sends to an endpoint, or the zero address if
	// it is unknown.
	Source func(netip.Addr) netip.Addr
}

// Watch finds endpoints that don't answer connections. Its methods are safe for concurrent use.
type Watch struct {
	o    Options
	wake wake.Signal

	mu       sync.Mutex // guards the fields below
	suspects map[balancer.Target]*suspect
	found    map[balancer.Target]explain.Silence
}

// suspect is an endpoint that did not answer a connection within the last minute.
type suspect struct {
	client  netip.Addr // client of the last failed connection; invalid if this host opens the connections
	err     error      // error of the last dial
	samples []sample   // samples of the last minute, oldest first
}

// sample holds an endpoint's counts at a point in time.
type sample struct {
	at                    time.Time
	connections, failures uint64
}

const (
	// pause is the minimum pause between two readings of the counters. Reading them may use at most
	// 1/share of the time.
	pause, share = 3 * time.Second, 100
	// maxPause is the maximum pause between two readings. It is shorter than the window, so a
	// problem is found within a window.
	maxPause = window / 4
	// window is the time over which an endpoint's share of failures is computed.
	window = time.Minute
	// An endpoint is a problem if it has at least minConnections connections and at least
	// minPercent percent of them fail.
	minConnections, minPercent = 10, 3
	// maxSuspects is the maximum number of endpoints that are watched at a time.
	maxSuspects = 1000
)

// New returns a Watch that suspects no endpoint.
func New(o Options) *Watch {
	return &Watch{o: o, wake: wake.New(), suspects: map[balancer.Target]*suspect{}}
}

// Record records a connection that an endpoint did not answer. If the kernel forwards the
// connection, client is the client's address. Otherwise, err is the error of the dial. Record does
// not block.
func (w *Watch) Record(t balancer.Target, client netip.Addr, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.suspects[t]
	if s == nil {
		if len(w.suspects) >= maxSuspects {
			return
		}
		s = &suspect{}
		w.suspects[t] = s
		w.wake.Send()
	}
	s.client, s.err = client, err
}

// Run reads counters while there are suspects, until ctx is done.
func (w *Watch) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		for {
			began := time.Now()
			if !w.examine() {
				break
			}
			if !wake.Sleep(ctx, min(max(pause, share*time.Since(began)), maxPause)) {
				return nil
			}
		}
	}
}

// examine examines all suspects, and reports whether any remain.
func (w *Watch) examine() bool {
	counts, now := w.o.Counts(), time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = map[balancer.Target]explain.Silence{}
	for t, s := range w.suspects {
		service := w.o.Service(t.Service)
		if service == nil || !s.add(count(service, t, counts, now)) {
			delete(w.suspects, t)
			continue
		}
		if failed, total := s.recent(); total >= minConnections && 100*failed >= minPercent*total {
			w.found[t] = explain.Silence{Unanswered: failed, Of: total, Cause: w.cause(service, t, s)}
		}
	}
	return len(w.suspects) > 0
}

// count returns an endpoint's counts, summed over its TCP and SCTP ports. UDP is excluded, because
// one-way UDP is normal.
func count(service *balancer.Service, t balancer.Target, counts map[traffic.Port]dataplane.FrontendCount, now time.Time) sample {
	n := sample{at: now}
	for _, p := range service.Ports {
		if p.Protocol == balancer.UDP {
			continue
		}
		for _, b := range counts[traffic.Port{Service: t.Service, Name: p.Name}].Backends {
			if b.Backend == netip.AddrPortFrom(t.Addr, t.Port) {
				n.connections, n.failures = n.connections+b.Connections, n.failures+b.Failures
			}
		}
	}
	return n
}

// add adds a sample. It returns false if the endpoint had no failure for a whole window.
func (s *suspect) add(n sample) bool {
	s.samples = append(s.samples, n)
	for len(s.samples) > 2 && n.at.Sub(s.samples[1].at) >= window {
		s.samples = s.samples[1:]
	}
	first := s.samples[0]
	return n.failures != first.failures || n.at.Sub(first.at) < window
}

// recent returns how many new connections in the window were unanswered, and how many there were in
// total.
func (s *suspect) recent() (failed, total uint64) {
	first, last := s.samples[0], s.samples[len(s.samples)-1]
	if last.connections < first.connections || last.failures < first.failures { // the endpoint was removed and added again, so its counters restarted from zero
		return 0, 0
	}
	failed, total = last.failures-first.failures, last.connections-first.connections
	if s.err != nil {
		total += failed // the endpoint's connections don't include failed dials
	}
	return min(failed, total), total
}

// cause returns the likely cause, and the command that fixes it.
func (w *Watch) cause(service *balancer.Service, t balancer.Target, s *suspect) string {
	listening := fmt.Sprintf("on the endpoint, check `ss -ltn sport = :%d` and its firewall", t.Port)
	switch {
	case s.err != nil:
		return fmt.Sprintf("connections from this host fail (%v): %s", s.err, listening)
	case w.o.Health(t) == balancer.HealthDown:
		return fmt.Sprintf("its health check also fails: `vipctl check-now %s %s`", t.Service, netip.AddrPortFrom(t.Addr, t.Port))
	case service.SNAT == balancer.AlwaysSNAT:
		return "the endpoint or a firewall on the path drops this host's packets: " + listening
	}
	via := "THIS-HOST"
	if from := w.o.Source(t.Addr); from.IsValid() {
		via = from.String()
	}
	return fmt.Sprintf("its replies to clients such as %s probably bypass this host: run `ip route replace %s via %s` on the endpoint, "+
		"or set snat = \"always\" for service %s", s.client, s.client, via, t.Service)
}

// StatsOf returns the statistics of an endpoint. It returns false if no failures are known.
func (w *Watch) StatsOf(t balancer.Target) (explain.Silence, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, found := w.found[t]
	return s, found
}

// Problems returns one problem for each endpoint that does not answer.
func (w *Watch) Problems() []balancer.Problem {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]balancer.Problem, 0, len(w.found))
	for _, t := range slices.SortedFunc(maps.Keys(w.found), balancer.Target.Compare) {
		at := netip.AddrPortFrom(t.Addr, t.Port)
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityError, Kind: balancer.Unanswered, Service: t.Service, Field: "endpoints",
			Text: fmt.Sprintf("%s %s", at, w.found[t]),
		})
	}
	return all
}
