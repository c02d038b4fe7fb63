package balancer

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// candidate is an endpoint at one port, with its overrides and health.
type candidate struct {
	Backend
	node, zone string
	backup     bool
	health     Verdict
	ejected    bool
	percent    int  // percentage of the weight that its agent requests
	overridden bool // an override drains it
	agentDrain bool // only its agent drains it
	agentDown  bool // its agent reports it as down
	from       Lookup
	former     bool // see Endpoint.Former
	unproven   bool // see markUnproven
}

// eligible reports whether the candidate may get new connections.
func (c *candidate) eligible() bool { return c.State == Active }

// endpointCounts counts the endpoints of a port in one address family. The field all counts the
// endpoints that may serve on this node. Of these, healthy counts the endpoints whose checks do not
// fail, usable counts the healthy endpoints that are not backups, and stopped counts the endpoints
// that their agents report as down. The other fields count the endpoints that may not serve on this
// node by reason: drained by an override, by an agent or by definition, weight 0, or on another
// node.
type endpointCounts struct {
	healthy, usable, all, stopped                       int
	overridden, byAgent, drained, weightless, elsewhere int
}

// panics reports whether the healthy share is below the panic threshold. It ignores endpoints that
// their agents report as down, because no check has determined that state.
func (n endpointCounts) panics(h *Health) bool {
	return h != nil && 100*n.healthy < h.PanicThreshold*(n.all-n.stopped)
}

// tooFew reports whether fewer endpoints are usable than MinUsable requires. It returns false if no
// endpoint is usable, or if the panic threshold applies.
func (n endpointCounts) tooFew(s *Service) bool {
	return n.usable > 0 && n.usable < s.MinUsable && !n.panics(s.Health)
}

// allFailing reports whether endpoints exist and all fail their checks.
func (n endpointCounts) allFailing() bool { return n.healthy == 0 && n.all > 0 }

// idleReason explains how settings and agents exclude every endpoint from new connections. It
// returns "" if an endpoint may serve, or if there are no endpoints. Endpoints on other nodes are
// not a reason: with node_only, most nodes have no endpoint.
func (n endpointCounts) idleReason() string {
	if n.all > 0 || n.elsewhere > 0 {
		return ""
	}
	var why []string
	for _, group := range []struct {
		n    int
		what string
	}{{n.overridden, "drained by an override"}, {n.byAgent, "drained by agents"}, {n.drained, "with draining = true"}, {n.weightless, "with weight 0"}} {
		if group.n > 0 {
			why = append(why, fmt.Sprintf("%d %s", group.n, group.what))
		}
	}
	return strings.Join(why, ", ")
}

// backends returns the backends of port p for the frontend at the address and port own. They are
// the endpoints in the frontend's address family with their states, sorted by address. The result
// is cached for each port and family. An endpoint at own is omitted because its connections would
// loop. The bool reports whether there is such an endpoint.
func (c *serviceInputs) backends(env *Env, p *Port, own netip.AddrPort) (built portBackends, loops bool) {
	key := portFamily{p, own.Addr().Is4()}
	built, cached := c.ports[key]
	if !cached {
		built = c.buildBackends(env, c.candidates(p, own.Addr()))
		c.ports[key] = built
	}
	at, loops := slices.BinarySearchFunc(built.all, own, func(b Backend, own netip.AddrPort) int { return b.Addr.Compare(own) })
	if !loops {
		return built, false
	}
	return c.buildBackends(env, slices.Delete(c.candidates(p, own.Addr()), at, at+1)), true
}

func (c *serviceInputs) buildBackends(env *Env, candidates []candidate) portBackends {
	markUnproven(candidates)
	n := c.countEndpoints(env, candidates)
	if n.panics(c.service.Health) {
		activateAll(env, c.service.Locality, candidates)
	} else {
		markUnselected(env, c.service, n, candidates)
	}
	scaleByAgents(candidates)
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

// candidates returns the candidates of port p in the address family of a, sorted by address and
// port. If several endpoints have the same address and port, the first is used.
func (c *serviceInputs) candidates(p *Port, a netip.Addr) []candidate {
	var candidates []candidate
	for _, e := range c.joined.used {
		if e.Address.Is4() == a.Is4() {
			candidates = append(candidates, c.newCandidate(e, p))
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(candidates, func(a, b candidate) bool { return a.Addr == b.Addr })
}

// markUnproven marks a lookup's new candidates that no check has found up, while endpoints from the
// lookup's former answer still serve. Marked candidates get no new connections and are not counted.
func markUnproven(candidates []candidate) {
	var serving []Lookup
	for i := range candidates {
		if c := &candidates[i]; c.former && c.health == HealthUp && c.eligible() && !slices.Contains(serving, c.from) {
			serving = append(serving, c.from)
		}
	}
	if serving == nil {
		return
	}
	for i := range candidates {
		c := &candidates[i]
		if c.unproven = !c.former && c.health != HealthUp && slices.Contains(serving, c.from); c.unproven && c.eligible() {
			c.State = Untested
		}
	}
}

// countEndpoints counts the candidates. Ejected endpoints count as healthy, because an ejection
// ends if no other endpoint is usable.
func (c *serviceInputs) countEndpoints(env *Env, candidates []candidate) (n endpointCounts) {
	for i := range candidates {
		k := &candidates[i]
		if k.unproven {
			continue
		}
		if c.service.Locality == NodeOnly && k.node != env.Node {
			n.elsewhere++
			continue
		}
		switch k.State {
		case Draining:
			switch {
			case k.overridden:
				n.overridden++
			case k.agentDrain:
				n.byAgent++
			default:
				n.drained++
			}
		case ZeroWeight:
			n.weightless++
		case Active:
			n.healthy, n.all = n.healthy+1, n.all+1
			if !k.backup {
				n.usable++
			}
		case Down:
			if n.all++; k.agentDown {
				n.stopped++
			}
		}
	}
	return n
}

// activateAll activates all candidates that may serve on this node, even if their checks fail. It
// is called when the panic threshold applies, because then either the checks are probably wrong, or
// the few healthy endpoints would be overloaded. An endpoint that its agent reports as down stays
// down, because no check has determined that state.
func activateAll(env *Env, locality Locality, candidates []candidate) {
	for i := range candidates {
		k := &candidates[i]
		here := locality != NodeOnly || k.node == env.Node
		switch {
		case k.State == Down && here && !k.unproven && !k.agentDown:
			k.State, k.Until = Active, time.Time{}
		case k.State == Active && !here:
			k.State = Remote
		}
	}
}

func (c *serviceInputs) newCandidate(e *Endpoint, p *Port) candidate {
	at := netip.AddrPortFrom(e.Address, e.TargetPort(p))
	target := Target{c.service.Name, at.Addr(), at.Port()}
	out := candidate{
		Backend: Backend{Addr: at, State: Active, Weight: e.Weight, MaxConnections: e.MaxConnections},
		node:    e.Node, zone: e.Zone, backup: e.Backup,
		health: c.in.Health.At(target), ejected: c.in.Ejected.Has(target), percent: agentSteps, from: e.From, former: e.Former,
	}
	if e.IsUnchecked() {
		out.health = HealthUp
	}
	o := OverrideOf(c.in, target)
	weight, draining := o.Effective(e.Weight, e.Draining)
	if answer, answered := c.in.Agents.Get(target); answered && !e.IsUnchecked() {
		out.answered(answer, o)
		out.agentDrain = !draining && answer.drains(o)
		draining = draining || out.agentDrain
	}
	out.Failing = out.health == HealthDown
	out.Weight, out.overridden = weight, o.Drains()
	if out.overridden && !o.Until.IsZero() {
		out.Until = o.Until.UTC()
	}
	switch {
	case draining:
		out.State = Draining
	case out.Weight == 0 || out.percent == 0:
		out.State = ZeroWeight
	case out.health == HealthDown:
		out.State = Down
		if cutsConnections(c.service.Health, p.Protocol) {
			out.Until = time.Unix(0, 0).UTC() // far in the past, so connections end immediately
		}
	}
	return out
}

// cutsConnections reports whether connections to an endpoint end when its checks fail.
func cutsConnections(h *Health, proto Protocol) bool {
	return h != nil && (h.OnFailure == CutOnFailure || h.OnFailure == "" && proto == UDP)
}

// OverrideOf returns the override of the endpoint at t, whose port must be set. If the override for
// exactly t leaves a field unset, the override for all ports of the address supplies the field.
// OverrideOf returns nil if there is no override.
func OverrideOf(in *Inputs, t Target) *Override {
	narrow, wide := in.Overrides.At(t), in.Overrides.At(Target{t.Service, t.Addr, 0})
	switch {
	case !narrow.IsSet() && !wide.IsSet():
		return nil
	case !narrow.IsSet():
		return wide
	case !wide.IsSet():
		return narrow
	}
	return narrow.Inherit(wide)
}

// markUnselected sets the state of eligible candidates that get no new connections because of
// locality, backup rules or MinUsable. NodeOnly is applied before the other rules. PreferNode and
// PreferZone are applied after them, so a nearby backup remains a backup. If fewer endpoints are
// usable than MinUsable requires, backups serve instead of them.
func markUnselected(env *Env, s *Service, n endpointCounts, candidates []candidate) {
	locality := s.Locality
	if locality == NodeOnly {
		setAside(candidates, Remote, func(c *candidate) bool { return c.node != env.Node })
	}
	if n.tooFew(s) {
		setAside(candidates, Insufficient, func(c *candidate) bool { return !c.backup })
	}
	markEjected(candidates)
	if anyEligible(candidates, func(c *candidate) bool { return !c.backup }) {
		setAside(candidates, Standby, func(c *candidate) bool { return c.backup })
	}
	if enoughTested(candidates) {
		setAside(candidates, Untested, func(c *candidate) bool { return c.health == HealthUnknown })
	}
	if locality == PreferNode {
		prefer(candidates, func(c *candidate) bool { return c.node == env.Node })
	}
	if (locality == PreferNode || locality == PreferZone) && env.Zone != "" {
		prefer(candidates, func(c *candidate) bool { return c.zone == env.Zone })
	}
}

// enoughTested reports whether checks have found at least half of the eligible candidates, and at
// least one, to be up. Without this rule, the first endpoint that passes its check after the start
// of a service would get all connections.
func enoughTested(candidates []candidate) bool {
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

// If near returns true for an eligible candidate, prefer marks all other eligible candidates as
// remote.
func prefer(candidates []candidate, near func(*candidate) bool) {
	if anyEligible(candidates, near) {
		setAside(candidates, Remote, func(c *candidate) bool { return !near(c) })
	}
}

func anyEligible(candidates []candidate, match func(*candidate) bool) bool {
	for i := range candidates {
		if candidates[i].eligible() && match(&candidates[i]) {
			return true
		}
	}
	return false
}

func setAside(candidates []candidate, state BackendState, match func(*candidate) bool) {
	for i := range candidates {
		if candidates[i].eligible() && match(&candidates[i]) {
			candidates[i].State = state
		}
	}
}

// withMemory returns f with the ramps and drains in the inputs applied to its backends.
func withMemory(f *Frontend, in *Inputs) *Frontend { return addDrains(applyRamps(f, in), in) }

// addDrains returns a copy of f that also contains the removed backends that are still draining. If
// there are no such backends, it returns f.
func addDrains(f *Frontend, in *Inputs) *Frontend {
	var removed []Backend
	for k, d := range onFrontend(in.Drains, f.Key) {
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

// EndpointsOf returns the defined, registered and discovered endpoints of a service. If several
// have the same address and ports, registered endpoints have priority over defined endpoints, and
// defined over discovered endpoints. Endpoints from a lookup's former answer have the lowest
// priority. An endpoint with a host name is replaced by one endpoint for each address of the name.
func EndpointsOf(s *Service, in *Inputs) []*Endpoint {
	all, _ := listEndpoints(s, in)
	return all
}

// listEndpoints returns the endpoints of EndpointsOf. The first registered endpoints in the list
// were registered separately from the service.
func listEndpoints(s *Service, in *Inputs) (all []*Endpoint, registered int) {
	defined := definedEndpoints(s, in)
	all = make([]*Endpoint, 0, len(defined))
	var former []*Endpoint
	add := func(l Lookup, e *Endpoint, limit int) {
		found, earlier := in.Resolved.At(LookupID{s.Name, l}).endpoints(l, e, limit)
		all, former = append(all, found...), append(former, earlier...)
	}
	for i, e := range defined {
		if e.Address.IsValid() {
			all = append(all, e)
		} else {
			add(s.hostLookup(e), e, math.MaxInt)
		}
		if i < len(defined)-len(s.Endpoints) {
			registered = len(all)
		}
	}
	if d := s.Discover; d != nil {
		add(d.lookup(s.families()), new(Endpoint), d.Max)
	}
	return append(all, former...), registered
}

// definedEndpoints returns the registered endpoints, followed by the endpoints of the service's
// definition. Host names are not resolved.
func definedEndpoints(s *Service, in *Inputs) []*Endpoint {
	endpoints := make([]*Endpoint, 0, len(s.Endpoints))
	for _, e := range in.Endpoints.While(EndpointID{Service: s.Name}, func(id EndpointID) bool { return id.Service == s.Name }) {
		endpoints = append(endpoints, e)
	}
	for i := range s.Endpoints {
		endpoints = append(endpoints, &s.Endpoints[i])
	}
	return endpoints
}

// compareClaims orders services that claim the same key: services from files first, then services
// from etcd by age, then by name.
func compareClaims(a, b *Service) int {
	return cmp.Or(
		cmp.Compare(boolToInt(fromEtcd(a)), boolToInt(fromEtcd(b))),
		cmp.Compare(a.Origin.Created, b.Origin.Created),
		a.Name.Compare(b.Name),
	)
}
