package ipvs

import (
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// failover is the scheduler that gives everything to the heaviest destination (ip_vs_fo).
const failover = "fo"

// render returns the virtual server that f comes to.
func render(f *balancer.Frontend) ipvsnl.Service {
	s := ipvsnl.Service{Key: f.Key, Scheduler: string(f.Scheduler)}
	switch f.Scheduler {
	case balancer.Random: // the kernel has none by chance
		s.Scheduler = string(balancer.WeightedRoundRobin)
	case balancer.SourceHash, balancer.Maglev:
		// Without, a client whose hash leads to a destination that drains or is full would be refused. The client's port
		// is not looked at: a client stays where it is by its address.
		s.Flags = ipvsnl.Fallback
	}
	if f.AffinityTimeout > 0 {
		s.Flags |= ipvsnl.Persistent
		s.Timeout = min((f.AffinityTimeout+time.Second-1)/time.Second*time.Second, ipvsnl.MaxTimeout)
	}
	return s
}

// renderDestination returns the destination that an active backend of f comes to, with a weight that share has made of
// the backend's.
func renderDestination(f *balancer.Frontend, b *balancer.Backend, weight int) ipvsnl.Destination {
	// The kernel clears the mark of a full destination below the lower threshold: with both alike, it takes a connection
	// as soon as there is room for one. Without a lower one it waits for a quarter of them to end.
	bound := uint32(max(b.MaxConnections, 0))
	return ipvsnl.Destination{Addr: b.Addr, Forward: f.Forward, Weight: weight, Upper: bound, Lower: bound}
}

// sourceHashBuckets is the size of the table of sh (IP_VS_SH_TAB_SIZE, net/netfilter/ipvs/ip_vs_sh.c: 8 bits unless the
// kernel was configured otherwise).
const sourceHashBuckets = 256

// share returns what makes a weight of f's backends one of destinations. They are the same but for sh: that gives each
// destination in turn one bucket of its table for each unit of weight, so that with great weights there would be none left
// for the last.
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

// target returns what is to be in the kernel for what is wanted, where s and now say what is there already and what time
// it is: the virtual server, none if there is no destination, and its destinations by their addresses.
//
// A backend that gets no new connections has a destination only for those that it has: where there is none, none is made.
func (s *server) target(now time.Time) (ipvsnl.Service, []ipvsnl.Destination) {
	var all []ipvsnl.Destination
	quiet := false
	keep := func(d ipvsnl.Destination) {
		d.Weight, quiet = 0, true
		all = append(all, d)
	}
	rest := s.destinations // those not looked at yet; they and the backends are sorted alike
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
		// dh refuses clients whose hash leads to a destination of weight 0. This one gives all clients of a VIP to one
		// destination, too.
		v.Scheduler = failover
	}
	return v, all
}

// lingers reports whether connections to a destination that no backend stands for have time.
func (s *server) lingers(at netip.AddrPort, now time.Time) bool { return s.old[at].After(now) }

// digest is Dataplane.Digest: it covers what target and the drains make of f, and what counters are named by. What the
// guard makes of a frontend is no concern of virtual servers.
func digest(f *balancer.Frontend) dataplane.Digest {
	g := &balancer.Frontend{
		Key: f.Key, Service: f.Service, Port: f.Port, AffinityTimeout: f.AffinityTimeout,
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
