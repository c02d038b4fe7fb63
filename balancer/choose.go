package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// candidate is an endpoint at one port with what was said of it.
type candidate struct {
	Backend
	node, zone string
	backup     bool
	health     Verdict
	ejected    bool
	byHand     bool // it drains because an operator said so
}

// eligible reports whether nothing about the candidate itself keeps it from new connections.
func (c *candidate) eligible() bool { return c.State == Active }

// standing is how many endpoints of a port there are for the VIPs of a family: all that may serve here, and those of them
// that are healthy. One that was not checked yet counts as healthy. The others are kept from it: drained by hand or as they
// are written, of weight 0, or on other nodes.
type standing struct{ healthy, all, byHand, drained, weightless, elsewhere int }

// panics reports whether fewer than the panic threshold are healthy.
func (n standing) panics(h *Health) bool {
	return h != nil && 100*n.healthy < h.PanicThreshold*n.all
}

// out reports whether there are endpoints, and all of them fail their checks.
func (n standing) out() bool { return n.healthy == 0 && n.all > 0 }

// idle says why no endpoint may take new connections, where users have said so of each; "" means some may, or there is none. A
// service that serves from its own node alone is idle on most.
func (n standing) idle() string {
	if n.all > 0 || n.elsewhere > 0 {
		return ""
	}
	var why []string
	for _, of := range []struct {
		n    int
		what string
	}{{n.byHand, "drained by hand"}, {n.drained, "drained as written"}, {n.weightless, "of weight 0"}} {
		if of.n > 0 {
			why = append(why, fmt.Sprintf("%d %s", of.n, of.what))
		}
	}
	return strings.Join(why, ", ")
}

// backends returns the backends of port p of s for a frontend at own, sorted by address: every endpoint of that family,
// each with its state. They are made once for all VIPs of a family, but for a frontend that has an endpoint at its own
// address and port. That endpoint is not among them, because connections to it would loop: back says that there
// is one.
func (c *serviceInputs) backends(env *Env, p *Port, own netip.AddrPort) (made portBackends, back bool) {
	of := portFamily{p, own.Addr().Is4()}
	made, again := c.ports[of]
	if !again {
		made = c.make(env, c.candidates(p, own.Addr()))
		c.ports[of] = made
	}
	at, back := slices.BinarySearchFunc(made.all, own, func(b Backend, own netip.AddrPort) int { return b.Addr.Compare(own) })
	if !back {
		return made, false
	}
	return c.make(env, slices.Delete(c.candidates(p, own.Addr()), at, at+1)), true
}

// make makes backends of candidates, and says how those stand.
func (c *serviceInputs) make(env *Env, candidates []candidate) portBackends {
	n := c.standing(env, candidates)
	if n.panics(c.service.Health) {
		useAll(env, c.service.Locality, candidates)
	} else {
		choose(env, c.service.Locality, candidates)
	}
	backends := make([]Backend, len(candidates))
	for i := range candidates {
		b := candidates[i].Backend
		if b.State != Active {
			b.Weight = 0
		}
		backends[i] = b
	}
	return portBackends{backends, n}
}

// candidates returns the endpoints at port p of the family of a, sorted by address.
func (c *serviceInputs) candidates(p *Port, a netip.Addr) []candidate {
	var candidates []candidate
	for _, e := range c.joined.used {
		if e.Address.Is4() == a.Is4() {
			candidates = append(candidates, c.candidate(e, p))
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(candidates, func(a, b candidate) bool { return a.Addr == b.Addr })
}

// standing counts the candidates that nothing but their health keeps from serving here. An ejection does not: it ends
// where no other is left.
func (c *serviceInputs) standing(env *Env, candidates []candidate) (n standing) {
	for i := range candidates {
		k := &candidates[i]
		if c.service.Locality == NodeOnly && k.node != env.Node {
			n.elsewhere++
			continue
		}
		switch k.State {
		case Draining:
			if k.byHand {
				n.byHand++
			} else {
				n.drained++
			}
		case ZeroWeight:
			n.weightless++
		case Active:
			n.healthy, n.all = n.healthy+1, n.all+1
		case Down:
			n.all++
		}
	}
	return n
}

// useAll uses all candidates that may serve here but those that operators keep from it: with so few healthy ones left,
// it is more likely that the checks are wrong, or that the healthy ones drown, than that no other can serve.
func useAll(env *Env, locality Locality, candidates []candidate) {
	for i := range candidates {
		k := &candidates[i]
		here := locality != NodeOnly || k.node == env.Node
		switch {
		case k.State == Down && here:
			k.State, k.Until = Active, time.Time{}
		case k.State == Active && !here:
			k.State = Remote
		}
	}
}

// candidate applies overrides and health to e at port p.
func (c *serviceInputs) candidate(e *Endpoint, p *Port) candidate {
	at := netip.AddrPortFrom(e.Address, e.TargetPort(p))
	target := Target{c.service.Name, at.Addr(), at.Port()}
	out := candidate{
		Backend: Backend{Addr: at, State: Active, Weight: e.Weight, MaxConnections: e.MaxConnections},
		node:    e.Node, zone: e.Zone, backup: e.Backup,
		health: c.in.Health.At(target), ejected: c.in.Ejected.Has(target),
	}
	out.Failing = out.health == HealthDown
	o := OverrideOf(c.in, target)
	weight, draining := o.Effective(e.Weight, e.Draining)
	out.Weight, out.byHand = weight, o.Drains()
	if out.byHand && !o.Until.IsZero() {
		out.Until = o.Until.UTC()
	}
	switch {
	case draining:
		out.State = Draining
	case out.Weight == 0:
		out.State = ZeroWeight
	case out.health == HealthDown:
		out.State = Down
		if cuts(c.service.Health, p.Protocol) {
			out.Until = time.Unix(0, 0).UTC() // long past: what is to end then ends at once
		}
	}
	return out
}

// cuts reports whether the connections of an endpoint that fails its checks are ended.
func cuts(h *Health, proto Protocol) bool {
	return h != nil && (h.OnFailure == CutOnFailure || h.OnFailure == "" && proto == UDP)
}

// OverrideOf returns what was said of the endpoint at t, which has a port: what was said of exactly it, joined with what
// was said of all at its address; each field is the narrower one's where that has it. Nil means nothing was said.
func OverrideOf(in *Inputs, t Target) *Override {
	narrow, wide := in.Overrides.At(t), in.Overrides.At(Target{t.Service, t.Addr, 0})
	switch {
	case !narrow.Says() && !wide.Says():
		return nil
	case !narrow.Says():
		return wide
	case !wide.Says():
		return narrow
	}
	return narrow.Beside(wide)
}

// choose marks the eligible candidates that others keep from new connections: those elsewhere, where locality demands
// or prefers nearer ones, those that are ejected, backups while others are up, and those that were not checked yet while enough others are known
// to be up. A demand comes before the other rules, a preference after: a backup nearby is still only a backup.
func choose(env *Env, locality Locality, candidates []candidate) {
	if locality == NodeOnly {
		setAside(candidates, Remote, func(c *candidate) bool { return c.node != env.Node })
	}
	eject(candidates)
	if has(candidates, func(c *candidate) bool { return !c.backup }) {
		setAside(candidates, Standby, func(c *candidate) bool { return c.backup })
	}
	if mostKnown(candidates) {
		setAside(candidates, Untested, func(c *candidate) bool { return c.health == HealthUnknown })
	}
	if locality == PreferNode {
		prefer(candidates, func(c *candidate) bool { return c.node == env.Node })
	}
	if (locality == PreferNode || locality == PreferZone) && env.Zone != "" {
		prefer(candidates, func(c *candidate) bool { return c.zone == env.Zone })
	}
}

// mostKnown reports whether at least as many of the eligible candidates are known to be up as were not checked yet. Else,
// as when a service starts, the first that passes its check would get the connections of all.
func mostKnown(candidates []candidate) bool {
	up, unknown := 0, 0
	for i := range candidates {
		switch c := &candidates[i]; {
		case !c.eligible():
		case c.health == HealthUp:
			up++
		default:
			unknown++
		}
	}
	return up > 0 && up >= unknown
}

// prefer sets the eligible candidates aside that are not near, if there are any near ones.
func prefer(candidates []candidate, near func(*candidate) bool) {
	if has(candidates, near) {
		setAside(candidates, Remote, func(c *candidate) bool { return !near(c) })
	}
}

func has(candidates []candidate, is func(*candidate) bool) bool {
	for i := range candidates {
		if candidates[i].eligible() && is(&candidates[i]) {
			return true
		}
	}
	return false
}

func setAside(candidates []candidate, state BackendState, is func(*candidate) bool) {
	for i := range candidates {
		if candidates[i].eligible() && is(&candidates[i]) {
			candidates[i].State = state
		}
	}
}

// remembered returns f with what is remembered of its backends: weights that are still ramping up, and drains.
func remembered(f *Frontend, in *Inputs) *Frontend { return withDrains(withRamps(f, in), in) }

// withDrains returns f with the removed backends whose connections may live on, in a new frontend unless there are none.
func withDrains(f *Frontend, in *Inputs) *Frontend {
	var removed []Backend
	for k, d := range ofFrontend(in.Drains, f.Key) {
		if f.Backend(k.Backend) == nil {
			removed = append(removed, Backend{Addr: k.Backend, State: Removed, Until: d.Until})
		}
	}
	if removed == nil {
		return f
	}
	g := *f
	g.Backends = slices.Concat(f.Backends, removed)
	slices.SortFunc(g.Backends, func(a, b Backend) int { return a.Addr.Compare(b.Addr) })
	return &g
}

// EndpointsOf joins the service's own endpoints with those published apart. One that was published apart replaces the
// service's own of the same address and ports.
func EndpointsOf(s *Service, in *Inputs) []*Endpoint {
	endpoints := make([]*Endpoint, 0, len(s.Endpoints))
	for _, e := range in.Endpoints.While(EndpointID{Service: s.Name}, func(id EndpointID) bool { return id.Service == s.Name }) {
		endpoints = append(endpoints, e)
	}
	for i := range s.Endpoints {
		endpoints = append(endpoints, &s.Endpoints[i])
	}
	return endpoints
}

// compareClaims orders two services that claim one key: files before etcd, then the older in etcd, then by name.
func compareClaims(a, b *Service) int {
	return cmp.Or(
		cmp.Compare(oneIf(fromEtcd(a)), oneIf(fromEtcd(b))),
		cmp.Compare(a.Origin.Created, b.Origin.Created),
		a.Name.Compare(b.Name),
	)
}
