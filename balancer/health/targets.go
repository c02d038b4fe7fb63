package health

import (
	"cmp"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Subject is what a target's check looks at. Subjects are compared with ==: the definition is shared, never edited.
type Subject struct {
	// At is the address and port that is probed.
	At netip.AddrPort
	// Proto is the protocol of the port that is probed: DNS is asked over it, all others have their own.
	Proto balancer.Protocol
	// Header is the version of the PROXY header that clients' connections to At start with, and so the check's. "" means
	// that there is none.
	Header balancer.ProxyProtocol
	// Health is the service's definition of the check.
	Health *balancer.Health
	// Fleet: the hosts of a fleet check it together. The service is theirs (it comes from etcd), and asks for that.
	Fleet bool
}

// Targets finds out what is to be checked, with work only for what changed. The zero value is ready; it is used by one
// goroutine.
type Targets struct {
	services  snap.Map[balancer.Name, *balancer.Service]
	endpoints snap.Map[balancer.EndpointID, *balancer.Endpoint]
	env       balancer.Env
	index     balancer.AddressIndex
	wanted    snap.Map[balancer.Target, Subject]
}

// Next returns the subject of each target of the services that have checks. env says whether services from etcd may run
// programs (AllowExec): what they ask for is left out otherwise, unless others of a fleet may do it (Subject.Fleet; the host that
// runs it looks at its type). No node runs them as a user that etcd names (balancer.WantsUser). Endpoints that the node
// does not use (refused ones from etcd) are not checked. What did not change keeps its place, so that snap.Diff of two answers costs what
// changed.
func (t *Targets) Next(env *balancer.Env, in *balancer.Inputs) snap.Map[balancer.Target, Subject] {
	dirty := t.dirty(env, in)
	t.services, t.endpoints, t.env = in.Services, in.Endpoints, *env
	for name := range dirty {
		t.replace(name, in)
	}
	return t.wanted
}

// dirty returns the services whose subjects may have changed.
func (t *Targets) dirty(env *balancer.Env, in *balancer.Inputs) map[balancer.Name]bool {
	dirty := map[balancer.Name]bool{}
	for name := range snap.Diff(t.services, in.Services) {
		dirty[name] = true
	}
	for id := range snap.Diff(t.endpoints, in.Endpoints) {
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

// replace makes the subjects of one service again.
func (t *Targets) replace(name balancer.Name, in *balancer.Inputs) {
	t.index.Update(name, in)
	wanted := map[balancer.Target]Subject{}
	if s, ok := in.Services.Get(name); ok && !balancer.WantsUser(s) && !t.refusesFiles(s) && (t.env.AllowExec || !asksForeignExec(s) || ByFleet(s)) {
		wanted = subjects(&t.env, s, in)
	}
	for target := range t.wanted.While(balancer.Target{Service: name}, func(t balancer.Target) bool { return t.Service == name }) {
		if _, stays := wanted[target]; !stays {
			t.wanted = t.wanted.Delete(target)
		}
	}
	for target, subject := range wanted {
		t.wanted = t.wanted.Set(target, subject)
	}
}

func (t *Targets) refusesFiles(s *balancer.Service) bool {
	field, _ := t.env.RefusedFile(s)
	return field != ""
}

// ByFleet reports whether the hosts of a fleet check the endpoints of s together. A service of this node's own files is
// unknown to the others.
func ByFleet(s *balancer.Service) bool {
	return s.Health != nil && s.Health.From == balancer.HealthFromFleet && s.Origin.Key != ""
}

// asksForeignExec reports whether s wants a program run, and did not come from this node's own files.
func asksForeignExec(s *balancer.Service) bool {
	return s.Health != nil && s.Health.Type == balancer.ExecHealth && s.Origin.Key != ""
}

// subjects returns what is to be checked for each endpoint of s, one target for each of its ports.
func subjects(env *balancer.Env, s *balancer.Service, in *balancer.Inputs) map[balancer.Target]Subject {
	wanted := map[balancer.Target]Subject{}
	if s.Health == nil {
		return wanted
	}
	for _, e := range balancer.UsedEndpoints(env, s, in) {
		for i := range s.Ports {
			p := &s.Ports[i]
			probed := p
			if s.Health.Port == 0 {
				if probed = probedFor(s, p); probed == nil {
					continue
				}
			}
			port := cmp.Or(s.Health.Port, e.TargetPort(probed))
			target := balancer.Target{Service: s.Name, Addr: e.Address, Port: e.TargetPort(p)}
			if _, twice := wanted[target]; twice {
				continue // the first of two ports that lead to the same place, as 53/udp and 53/tcp do
			}
			wanted[target] = Subject{
				At: netip.AddrPortFrom(e.Address, port), Proto: probed.Protocol, Header: header(env, s, e, port), Health: s.Health, Fleet: ByFleet(s),
			}
		}
	}
	return wanted
}

// header returns the version of the PROXY header that clients' connections to a port of e start with.
func header(env *balancer.Env, s *balancer.Service, e *balancer.Endpoint, port uint16) balancer.ProxyProtocol {
	leads := func(p balancer.Port) bool { return p.Protocol == balancer.TCP && e.TargetPort(&p) == port }
	if !env.Capabilities.ProxyProtocol || s.ProxyProtocol == balancer.NoProxyProtocol || !slices.ContainsFunc(s.Ports, leads) {
		return ""
	}
	return s.ProxyProtocol
}

// probedFor returns the port of s that is probed for p: p itself where the check can speak its protocol, else the first
// that it can. Nil: none, and nothing is known of the endpoints.
func probedFor(s *balancer.Service, p *balancer.Port) *balancer.Port {
	if speaks(s.Health.Type, p.Protocol) {
		return p
	}
	i := slices.IndexFunc(s.Ports, func(q balancer.Port) bool { return speaks(s.Health.Type, q.Protocol) })
	if i < 0 {
		return nil
	}
	return &s.Ports[i]
}

// speaks reports whether checks of type t can be made at a port of protocol p.
func speaks(t balancer.HealthType, p balancer.Protocol) bool {
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
