package health

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Subject describes a check of a target. Subjects are compared with ==, so the definition is shared
// and never changed.
type Subject struct {
	// At is the address and port to check.
	At netip.AddrPort
	// Proto is the port's protocol. Only DNS checks can use both TCP and UDP.
	Proto balancer.Protocol
	// Header is the version of the PROXY header at the start of clients' connections to At, which
	// checks must also send. It is "" if there is no header.
	Header balancer.ProxyProtocol
	// Health is the service's definition of the check.
	Health *balancer.Health
	// Fleet reports whether the hosts of a fleet share the check, because a service from etcd
	// requests it.
	Fleet bool
	// Next is the next check of the target, or nil. Health.Need of the first check decides how many
	// must pass.
	Next *Subject
}

// All yields the checks of the target.
func (s Subject) All() iter.Seq[Subject] {
	return func(yield func(Subject) bool) {
		for c := &s; c != nil; c = c.Next {
			if !yield(*c) {
				return
			}
		}
	}
}

// SameChecks reports whether two targets have the same checks.
func (s Subject) SameChecks(other Subject) bool {
	next, otherNext := s.Next, other.Next
	s.Next, other.Next = nil, nil
	return s == other && (next == nil) == (otherNext == nil) && (next == nil || next.SameChecks(*otherNext))
}

func (s Subject) RunsProgram() bool {
	for c := range s.All() {
		if c.Health.Type == balancer.ExecHealth {
			return true
		}
	}
	return false
}

// Confirmation returns the maximum time that the checks of the target need for a new verdict.
func (s Subject) Confirmation() (longest time.Duration) {
	for c := range s.All() {
		h := c.Health
		longest = max(longest, h.Interval*time.Duration(max(h.Rise, h.Fall))+h.Timeout)
	}
	return longest
}

// Targets computes the targets to check. The work of a call is proportional to the changes since
// the previous call. The zero value is ready. Only one goroutine may use it.
type Targets struct {
	// Agents reports whether the subjects are queries of endpoints' agents instead of health
	// checks.
	Agents    bool
	services  snap.Map[balancer.Name, *balancer.Service]
	endpoints snap.Map[balancer.EndpointID, *balancer.Endpoint]
	resolved  snap.Map[balancer.LookupID, *balancer.Resolution]
	env       balancer.Env
	index     balancer.AddressIndex
	wanted    snap.Map[balancer.Target, Subject]
}

// Next returns the subject of each target that has a check. It omits endpoints that the node does
// not use. Unchanged entries are shared, so the cost of snap.Diff depends only on the differences.
//
// Exec checks from etcd are omitted unless env.AllowExec or Subject.Fleet is set; another node of
// the fleet may be allowed to run them. Services from etcd whose checks name a user
// (balancer.WantsUser) or a refused file (balancer.Env.RefusedFile) are always omitted.
func (t *Targets) Next(env *balancer.Env, in *balancer.Inputs) snap.Map[balancer.Target, Subject] {
	dirty := t.dirty(env, in)
	t.services = in.Services
	t.endpoints = in.Endpoints
	t.resolved = in.Resolved
	t.env = *env
	for name := range dirty {
		t.replace(name, in)
	}
	return t.wanted
}

// dirty returns the services whose subjects must be recomputed.
func (t *Targets) dirty(env *balancer.Env, in *balancer.Inputs) map[balancer.Name]bool {
	dirty := map[balancer.Name]bool{}
	for name := range snap.Diff(t.services, in.Services) {
		dirty[name] = true
	}
	for id := range snap.Diff(t.endpoints, in.Endpoints) {
		dirty[id.Service] = true
	}
	for id := range snap.Diff(t.resolved, in.Resolved) {
		dirty[id.Service] = true
	}
	if env.AllowExec != t.env.AllowExec || env.TLSDir != t.env.TLSDir || env.Capabilities.ProxyProtocol != t.env.Capabilities.ProxyProtocol || !balancer.SameTrust(env, &t.env) {
		for name := range in.Services.Keys() {
			dirty[name] = true
		}
	}
	for _, a := range balancer.ChangedAddresses(&t.env, env) {
		for _, name := range t.index.At(a) {
			dirty[name] = true
		}
	}
	return dirty
}

func (t *Targets) replace(name balancer.Name, in *balancer.Inputs) {
	t.index.Update(name, in)
	wanted := map[balancer.Target]Subject{}
	if s, ok := in.Services.Get(name); ok && !balancer.WantsUser(s) && !t.refusesFiles(s) && (t.env.AllowExec || !runsForeignExec(s) || ByFleet(s)) {
		wanted = t.subjects(s, in)
	}
	for target := range t.wanted.While(balancer.Target{Service: name}, func(t balancer.Target) bool { return t.Service == name }) {
		if _, stays := wanted[target]; !stays {
			t.wanted = t.wanted.Delete(target)
		}
	}
	for target, subject := range wanted {
		if before, known := t.wanted.Get(target); known && before.SameChecks(subject) {
			continue
		}
		t.wanted = t.wanted.Set(target, subject)
	}
}

func (t *Targets) refusesFiles(s *balancer.Service) bool {
	field, _ := t.env.RefusedFile(s)
	return field != ""
}

// ByFleet reports whether the hosts of a fleet share the checks of s. They never share checks of
// services from this node's own files.
func ByFleet(s *balancer.Service) bool {
	return s.Health != nil && s.Health.From == balancer.HealthFromFleet && s.Origin.Key != ""
}

// runsForeignExec reports whether s has an exec check and is not from this node's own files.
func runsForeignExec(s *balancer.Service) bool { return s.RunsProgram() && s.Origin.Key != "" }

// subjects returns the subjects of s: for each endpoint, one target per port.
func (t *Targets) subjects(s *balancer.Service, in *balancer.Inputs) map[balancer.Target]Subject {
	wanted := map[balancer.Target]Subject{}
	checks := s.Checks()
	if t.Agents {
		checks = s.Questions()
	}
	for _, e := range balancer.UsedEndpoints(&t.env, s, in) {
		if e.IsUnchecked() {
			continue
		}
		for i := range s.Ports {
			p := &s.Ports[i]
			target := balancer.Target{Service: s.Name, Addr: e.Address, Port: e.TargetPort(p)}
			if _, twice := wanted[target]; twice {
				continue // the second of two ports with the same target, such as 53/udp and 53/tcp
			}
			if subject := subjectOf(&t.env, s, checks, e, p); subject != nil {
				wanted[target] = *subject
			}
		}
	}
	return wanted
}

// subjectOf returns the given checks of e at port p as a linked list. It returns nil if no check is
// possible.
func subjectOf(env *balancer.Env, s *balancer.Service, checks []*balancer.Health, e *balancer.Endpoint, p *balancer.Port) (first *Subject) {
	for _, h := range slices.Backward(checks) {
		probed, own := p, e.CheckPort(h)
		if own == 0 {
			if probed = probedPort(s, h, p); probed == nil {
				continue
			}
		}
		port, datagrams := cmp.Or(own, e.TargetPort(probed)), probed.Protocol == balancer.UDP || h.Type == balancer.UDPHealth
		first = &Subject{
			At: netip.AddrPortFrom(e.Address, port), Proto: probed.Protocol, Header: header(env, s, e, port, datagrams), Health: h, Fleet: ByFleet(s), Next: first,
		}
	}
	return first
}

// header returns the version of the PROXY header at the start of clients' connections to a port of
// e, or "" if there is no header. The parameter datagrams reports whether the check is over UDP.
func header(env *balancer.Env, s *balancer.Service, e *balancer.Endpoint, port uint16, datagrams bool) balancer.ProxyProtocol {
	leads := func(p balancer.Port) bool {
		has := p.Protocol == balancer.TCP || p.Protocol == balancer.UDP && datagrams && s.ProxyProtocol == balancer.ProxyProtocolV2
		return has && e.TargetPort(&p) == port
	}
	if !env.Capabilities.ProxyProtocol || s.ProxyProtocol == balancer.NoProxyProtocol || !slices.ContainsFunc(s.Ports, leads) {
		return ""
	}
	return s.ProxyProtocol
}

// probedPort returns the port of s that h checks for p: p itself, or otherwise the first port whose
// protocol the check supports. It returns nil if no port can be checked.
func probedPort(s *balancer.Service, h *balancer.Health, p *balancer.Port) *balancer.Port {
	if supports(h.Type, p.Protocol) {
		return p
	}
	i := slices.IndexFunc(s.Ports, func(q balancer.Port) bool { return supports(h.Type, q.Protocol) })
	if i < 0 {
		return nil
	}
	return &s.Ports[i]
}

// supports reports whether checks of type t work on ports that use protocol p.
func supports(t balancer.HealthType, p balancer.Protocol) bool {
	switch t {
	case balancer.ExecHealth:
		return true
	case balancer.DNSHealth:
		return p == balancer.UDP || p == balancer.TCP
	case balancer.UDPHealth:
		return p == balancer.UDP
	}
	return p == balancer.TCP
}
