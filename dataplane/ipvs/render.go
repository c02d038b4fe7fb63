package ipvs

import (
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// failover is the scheduler that selects the destination with the highest weight (ip_vs_fo).
const failover = "fo"

func render(f *balancer.Frontend) ipvsnl.Service {
	s := ipvsnl.Service{Key: f.Key, Scheduler: string(f.Scheduler)}
	switch f.Scheduler {
	case balancer.Random: // the kernel has no random scheduler
		s.Scheduler = string(balancer.WeightedRoundRobin)
	case balancer.SourceHash, balancer.Maglev:
		// Without this flag, a client whose hash selects a draining or full destination would be
		// refused. The port flag is not set, so all of a client's connections use the same
		// destination.
		s.Flags = ipvsnl.Fallback
	}
	if f.AffinityTimeout > 0 {
		s.Flags |= ipvsnl.Persistent
		s.Prefix = f.AffinityPrefix
		s.Timeout = min((f.AffinityTimeout+time.Second-1)/time.Second*time.Second, ipvsnl.MaxTimeout)
	}
	return s
}

func renderDestination(f *balancer.Frontend, b *balancer.Backend, weight int) ipvsnl.Destination {
	// The kernel marks a full destination as available again below the lower threshold. If both
	// thresholds are equal, the destination accepts a connection as soon as it has room. Without a
	// lower threshold, it waits until a quarter of its connections have closed.
	bound := uint32(max(b.MaxConnections, 0))
	return ipvsnl.Destination{Addr: b.Addr, Forward: f.Forward, Weight: weight, Upper: bound, Lower: bound}
}

// sourceHashBuckets is the size of sh's table (IP_VS_SH_TAB_SIZE, net/netfilter/ipvs/ip_vs_sh.c: 8
// bits by default).
const sourceHashBuckets = 256

// share returns a function that converts the weights of f's backends to the weights of
// destinations. Only sh needs other weights. It fills a table of limited size with one bucket per
// unit of weight, so large weights would leave no buckets for the last destinations.
func share(f *balancer.Frontend) func(weight int) int {
	same := func(weight int) int { return weight }
	if f.Scheduler != balancer.SourceHash {
		return same
	}
	divisor, sum := 0, 0
	for i := range f.Backends {
		if f.Backends[i].State == balancer.Active {
			divisor = gcd(f.Backends[i].Weight, divisor)
			sum += f.Backends[i].Weight
		}
	}
	if divisor == 0 {
		return same
	}
	if sum /= divisor; sum <= sourceHashBuckets {
		return func(weight int) int { return weight / divisor }
	}
	return func(weight int) int { return max(1, weight/divisor*sourceHashBuckets/sum) }
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// target returns the kernel's wanted state, based on its current state and the time. The result is
// the virtual server, which does not exist without destinations, and its destinations, sorted by
// address.
//
// A withdrawn frontend has no destinations. A backend without new connections has a destination
// only while existing connections need it. If its destination is missing, it is not created.
func (s *server) target(now time.Time) (ipvsnl.Service, []ipvsnl.Destination) {
	var all []ipvsnl.Destination
	quiet := false
	keep := func(d ipvsnl.Destination) {
		d.Weight, quiet = 0, true
		all = append(all, d)
	}
	rest := s.destinations // destinations that are not processed yet, in the backends' order
	pass := func() {
		if s.lingers(rest[0].Addr, now) {
			keep(rest[0])
		}
		rest = rest[1:]
	}
	if s.front == nil {
		for len(rest) > 0 {
			pass()
		}
		return s.virtual, all
	}
	if s.front.Withdrawn { // a virtual server would receive connections from programs on this host
		return s.virtual, nil
	}
	weigh := share(s.front)
	for i := range s.front.Backends {
		b := &s.front.Backends[i]
		for len(rest) > 0 && rest[0].Addr.Compare(b.Addr) < 0 {
			pass()
		}
		there := len(rest) > 0 && rest[0].Addr == b.Addr
		switch {
		case b.State == balancer.Active:
			all = append(all, renderDestination(s.front, b, weigh(b.Weight)))
		case there && !b.Expired(now):
			keep(rest[0])
		}
		if there {
			rest = rest[1:]
		}
	}
	for len(rest) > 0 {
		pass()
	}
	v := render(s.front)
	if quiet && s.front.Scheduler == balancer.DestinationHash && s.failover {
		// dh refuses clients whose hash selects a destination of weight 0. Like dh, fo sends all
		// clients of a VIP to the same destination.
		v.Scheduler = failover
	}
	return v, all
}

// lingers reports whether the connections to a destination without a backend may still continue.
func (s *server) lingers(at netip.AddrPort, now time.Time) bool { return s.old[at].After(now) }

// digest implements [Dataplane.Digest]. It covers everything in f that affects target, the marks,
// the drains and the names of counters, but not the guard's settings.
func digest(f *balancer.Frontend) dataplane.Digest {
	g := &balancer.Frontend{
		Key: f.Key, Service: f.Service, Port: f.Port, AffinityTimeout: f.AffinityTimeout, AffinityPrefix: f.AffinityPrefix, Withdrawn: f.Withdrawn, Open: f.Open,
		Policy:   balancer.Policy{Scheduler: f.Scheduler, Forward: f.Forward, DrainTimeout: f.DrainTimeout},
		Backends: make([]balancer.Backend, len(f.Backends)),
	}
	for i, b := range f.Backends {
		g.Backends[i] = balancer.Backend{Addr: b.Addr, Until: b.Until}
		if b.State == balancer.Active {
			g.Backends[i] = b
		}
	}
	return dataplane.DigestOf(g)
}
