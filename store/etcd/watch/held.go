package watch

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"

	"vipd/balancer"
	"vipd/store/etcd/schema"
)

// holding is an address that a service holds.
type holding struct {
	service balancer.Name
	created int64
	VIP     netip.Addr
}

// Compare orders holdings by service, then age.
func (h holding) Compare(other holding) int {
	return cmp.Or(h.service.Compare(other.service), cmp.Compare(h.created, other.created), h.VIP.Compare(other.VIP))
}

// holdings returns the addresses of a service, the oldest first.
func (s *state) holdings(name balancer.Name) iter.Seq2[holding, bool] {
	return s.held.While(holding{service: name}, func(h holding) bool { return h.service == name })
}

// hold adds a record's address to its holder's addresses. If held is false, it removes the address
// instead.
func (s *state) hold(r *record, held bool) {
	holder, _ := r.decoded.(balancer.Name)
	h := holding{holder, r.last.created, r.VIP}
	if held {
		s.held = s.held.Set(h, true)
	} else {
		s.held = s.held.Delete(h)
	}
	if _, service := s.serviceOf(holder); service != nil {
		s.Services = s.Services.Set(holder, s.allocated(service))
	}
}

// serviceOf returns the record of a service and its last good value, or nil.
func (s *state) serviceOf(name balancer.Name) (*record, *balancer.Service) {
	r := s.records.At(rawKey(s.keys.Service(name)))
	if r == nil {
		return nil, nil
	}
	service, _ := r.decoded.(*balancer.Service)
	return r, service
}

// allocated returns the service with the addresses that it holds, but no more than it requests.
func (s *state) allocated(service *balancer.Service) *balancer.Service {
	var vips []netip.Addr
	limit := min(len(service.Pools), schema.MaxAllocated)
	for h := range s.holdings(service.Name) {
		if len(vips) == limit {
			break
		}
		vips = append(vips, h.VIP)
	}
	if vips == nil {
		return service
	}
	joined := *service
	joined.Allocated = vips
	return &joined
}

// surplus reports addresses that a service holds but does not request. It reports nothing if the
// service's text can't be parsed.
func (s *state) surplus(name balancer.Name) {
	made := rawKey(s.keys.Prefix + schema.VIPFolder + "\x00surplus/" + string(name))
	r, service := s.serviceOf(name)
	requested, text := 0, "is held by service %s, which does not exist: free it with \"vipctl delete service %[1]s\""
	if service != nil {
		requested = min(len(service.Pools), schema.MaxAllocated)
		text = "is held by service %s, which does not request it: free it by applying that service (vipctl apply)"
	}
	if r == nil || r.current() {
		for h := range s.holdings(name) {
			if requested--; requested < 0 {
				s.setProblems(made, notice(true, balancer.SeverityWarning, name, s.keys.VIP(h.VIP), fmt.Sprintf(text, name)))
				return
			}
		}
	}
	s.setProblems(made, &record{})
}
