package traffic

import (
	"vipd/dataplane"
	"vipd/dataplane/counters"
)

// amount holds the counts of one backend of a port, or of the port itself. The port's own amount
// holds the bytes, and the connections without a backend. Amounts are signed, because the kernel
// may report more than was counted, for example after an endpoint is added again.
type amount struct {
	Connections int64 `json:"connections,omitempty"`
	Failures    int64 `json:"failures,omitempty"`
	In          int64 `json:"in,omitempty"`
	Out         int64 `json:"out,omitempty"`
}

func (a amount) plus(b amount) amount {
	return amount{a.Connections + b.Connections, a.Failures + b.Failures, a.In + b.In, a.Out + b.Out}
}

func (a amount) least(b amount) amount {
	return amount{min(a.Connections, b.Connections), min(a.Failures, b.Failures), min(a.In, b.In), min(a.Out, b.Out)}
}

func (a amount) negative() amount { return amount{-a.Connections, -a.Failures, -a.In, -a.Out} }

// sums holds the counts of many ports.
type sums struct {
	all, kept map[counters.BackendKey]amount
	// tracked holds the bytes of conntrack's flows. Each key is a whole port.
	tracked map[counters.BackendKey]amount
	// active holds how many connections are live, and flows how many flows conntrack has.
	active, flows map[counters.BackendKey]uint64
	// connections reports whether connection counters were read.
	connections bool
}

// sumsOf adds up the counts of a dataplane by backend and by port.
func sumsOf(counts []dataplane.FrontendCount) sums {
	size := 0 // allocated in one step, because ten thousand services have many backends
	for _, f := range counts {
		size += 1 + len(f.Backends)
	}
	s := sums{
		all: make(map[counters.BackendKey]amount, size), kept: map[counters.BackendKey]amount{}, tracked: map[counters.BackendKey]amount{},
		active: map[counters.BackendKey]uint64{}, flows: map[counters.BackendKey]uint64{},
	}
	add := func(to map[counters.BackendKey]amount, k counters.BackendKey, a amount) {
		if a != (amount{}) || k.Addr.IsValid() {
			to[k] = to[k].plus(a)
		}
	}
	for _, f := range counts {
		whole := counters.BackendKey{Port: counters.Port{Service: f.Service, Name: f.Port}}
		s.connections = s.connections || !f.BytesOnly
		rest := amount{int64(f.Connections), int64(f.Failures), int64(f.In), int64(f.Out)}
		for _, b := range f.Backends {
			k := counters.BackendKey{Port: whole.Port, Addr: b.Backend}
			add(s.all, k, amount{Connections: int64(b.Connections), Failures: int64(b.Failures)})
			rest.Connections, rest.Failures = rest.Connections-int64(b.Connections), rest.Failures-int64(b.Failures)
			if b.Kept > 0 {
				add(s.kept, k, amount{Connections: int64(b.Kept)})
			}
			switch {
			case b.Active == 0:
			case b.Tracked:
				s.flows[k] += b.Active
			default:
				s.active[k] += b.Active
			}
		}
		s.all[whole] = s.all[whole].plus(rest) // ports without backends also have an entry
		if kept := (amount{In: int64(f.KeptIn), Out: int64(f.KeptOut)}); f.Tracked {
			s.tracked[whole] = s.tracked[whole].plus(kept)
		} else {
			add(s.kept, whole, kept)
		}
	}
	return s
}

// with returns the sum of s and more. It may change maps in s.
func (s sums) with(more sums) sums {
	if s.all == nil { // the usual case, with one counting dataplane: nothing is copied
		return more
	}
	for k, a := range more.all {
		s.all[k] = s.all[k].plus(a)
	}
	for k, n := range more.active {
		s.active[k] += n
	}
	for k, n := range more.flows { // both have read the same flows
		s.flows[k] = max(s.flows[k], n)
	}
	return s
}

// ports returns the counts of each port, summed over its backends.
func (s sums) ports() map[Port]dataplane.FrontendCount {
	ports := 0 // each port has one entry without an address
	for k := range s.all {
		if !k.Addr.IsValid() {
			ports++
		}
	}
	sum := make(map[Port]*dataplane.FrontendCount, ports)
	for k, a := range s.all {
		f := sum[k.Port]
		if f == nil {
			f = &dataplane.FrontendCount{Service: k.Service, Port: k.Name}
			sum[k.Port] = f
		}
		f.Connections, f.Failures = f.Connections+uint64(a.Connections), f.Failures+uint64(a.Failures) // a sum of parts, each modulo 2^64
		f.In, f.Out = f.In+uint64(a.In), f.Out+uint64(a.Out)
		if k.Addr.IsValid() {
			f.Backends = append(f.Backends, dataplane.BackendCount{
				Backend: k.Addr, Connections: notNegative(a.Connections), Failures: notNegative(a.Failures), Active: s.active[k] + s.flows[k],
			})
		}
	}
	all := make(map[Port]dataplane.FrontendCount, len(sum))
	for k, f := range sum {
		f.Connections, f.Failures = notNegative(int64(f.Connections)), notNegative(int64(f.Failures))
		f.In, f.Out = notNegative(int64(f.In)), notNegative(int64(f.Out))
		all[k] = *f
	}
	return all
}

func notNegative(n int64) uint64 { return uint64(max(0, n)) }
