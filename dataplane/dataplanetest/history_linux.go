package dataplanetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"vipd/balancer"
)

// history is a random sequence of changes to services, determined by a seed. It adds, changes and
// removes its own services. It also changes the services in minded, whose first endpoint always has
// a weight above 0.
type history struct {
	random   *rand.Rand
	servers  []*server
	services []*balancer.Service // services that the history adds and removes, in their current or next version
	absent   []bool
	minded   []*balancer.Service
	// ranges reports whether services may have port ranges.
	ranges bool
}

// newHistory returns a history that has n services of its own and also changes the services in
// minded. The VIPs of its own services start at vipN(first).
func newHistory(seed uint64, servers []*server, first, n int, minded ...*balancer.Service) *history {
	h := &history{random: rand.New(rand.NewPCG(seed, 0)), servers: servers, minded: minded, absent: make([]bool, n)}
	for i := range n {
		s := newService(balancer.Name(fmt.Sprint("change", i)), vipN(first+i), endpoints(servers...)...)
		if i == 0 { // only this service drains, because the end of each drain is an additional change
			s.DrainTimeout = 200 * time.Millisecond
		}
		h.services = append(h.services, s)
	}
	return h
}

func (h *history) wanted() []*balancer.Service {
	all := append([]*balancer.Service(nil), h.minded...)
	for i, s := range h.services {
		if !h.absent[i] {
			all = append(all, s)
		}
	}
	return all
}

func (h *history) next() {
	if len(h.minded) > 0 && h.random.IntN(3) == 0 {
		i := h.random.IntN(len(h.minded))
		h.minded[i] = edited(h.minded[i], h.mind)
		return
	}
	i := h.random.IntN(len(h.services))
	if h.absent[i] || h.random.IntN(4) == 0 {
		h.absent[i] = !h.absent[i]
		return
	}
	h.services[i] = edited(h.services[i], h.change)
}

// applyHistory applies the next changes in a history, a few at a time. changes is their number.
func applyHistory(r *rig, h *history, changes int) {
	r.Helper()
	h.ranges = r.caps.MaxPorts > 0
	const atATime = 5
	for i := 1; i <= changes; i++ {
		h.next()
		if revision := r.set(h.wanted()...); i%atATime == 0 {
			if err := r.wait(revision); err != nil {
				r.Fatalf("error after %d changes = %v, want nil", i, err)
			}
		}
	}
}

func (h *history) change(s *balancer.Service) {
	switch h.random.IntN(6) {
	case 0:
		s.Endpoints = endpoints(h.servers[:h.random.IntN(len(h.servers)+1)]...)
	case 1:
		s.Endpoints = endpoints(h.servers...)
	case 2:
		h.shake(s.Endpoints)
	case 3:
		s.Scheduler = []balancer.Scheduler{balancer.RoundRobin, balancer.WeightedRoundRobin, balancer.Random}[h.random.IntN(3)]
	case 4:
		s.Affinity = []balancer.Affinity{balancer.NoAffinity, balancer.ClientIPAffinity}[h.random.IntN(2)]
	case 5:
		p := &s.Ports[0] // a changed port number creates another frontend
		p.Port, p.TargetPort = balancer.PortRange(vipPort+h.random.IntN(2)), targetPort
		if h.ranges && h.random.IntN(2) == 0 {
			p.Port = balancer.NewPortRange(targetPort, targetPort+9)
			p.TargetPort = p.Port
		}
	}
}

// mind makes a random change to a service that does not affect connections to its first endpoint.
func (h *history) mind(s *balancer.Service) {
	switch h.random.IntN(4) {
	case 0:
		rest := h.servers[1:][:h.random.IntN(len(h.servers))]
		s.Endpoints = append(s.Endpoints[:2:2], endpoints(rest...)...)
	case 1:
		for i := range s.Endpoints[:2] {
			s.Endpoints[i].Weight = 1 + h.random.IntN(3)
		}
		h.shake(s.Endpoints[2:])
	case 2:
		s.Scheduler = []balancer.Scheduler{balancer.RoundRobin, balancer.WeightedRoundRobin, balancer.Random}[h.random.IntN(3)]
	case 3:
		s.Ports = s.Ports[:2]
		if h.random.IntN(2) == 0 {
			s.Ports = append(s.Ports, balancer.Port{Name: "alt", Port: 83, Protocol: balancer.TCP, TargetPort: targetPort})
		}
	}
}

func (h *history) shake(all []balancer.Endpoint) {
	for i := range all {
		all[i].Weight = h.random.IntN(4)
		all[i].Draining = h.random.IntN(4) == 0
		all[i].Backup = h.random.IntN(4) == 0
	}
}

// checkAllServe sends a request to every step-th desired frontend. If the frontend has active
// backends, one of them must answer. Otherwise TCP clients must be refused.
func checkAllServe(r *rig, step int) {
	r.Helper()
	i := 0
	for key, f := range r.wanted().Frontends.All() {
		if i++; i%step != 0 {
			continue
		}
		if !f.Serves() {
			if key.Proto == balancer.TCP {
				r.refused(r.w.client, key)
			}
			continue
		}
		a := r.mustAsk(r.w.client, key)
		active := func(b balancer.Backend) bool { return b.Addr == a.Local && b.State == balancer.Active }
		if !slices.ContainsFunc(f.Backends, active) {
			r.Errorf("answer at %s = %s, want an active backend of %v", key, a.Local, f.Backends)
		}
	}
}
