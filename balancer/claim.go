package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// unit is what one service comes to on its own: the frontends that it claims, and its problems.
type unit struct {
	service  *Service
	claims   []*Frontend // sorted by key, each key once
	problems []Problem
}

// serviceInputs is what compiling one service looks at.
type serviceInputs struct {
	service *Service
	joined  joined
	in      *Inputs
	ports   map[portFamily]portBackends // those that were asked for
}

// portFamily is what the backends of a frontend depend on.
type portFamily struct {
	port *Port
	v4   bool
}

// portBackends are the backends of all frontends of one port and family.
type portBackends struct {
	all []Backend // shared by the frontends: it does not change
	standing
}

func newServiceInputs(env *Env, s *Service, in *Inputs) *serviceInputs {
	return &serviceInputs{service: s, joined: join(env, s, in), in: in, ports: map[portFamily]portBackends{}}
}

// defaultUDPIdle ends a UDP flow without traffic where users leave idle_timeout out.
const defaultUDPIdle = 60 * time.Second

// compileService compiles one service on its own: everything but the question who gets a contested key.
func compileService(env *Env, s *Service, in *Inputs) *unit {
	u := &unit{service: s}
	c := newServiceInputs(env, s, in)
	u.trust(env)
	u.unbuilt()
	u.unallocated()
	u.leftOut(&c.joined)
	u.capabilities(&env.Capabilities, c.joined.used)
	vips := u.allowedVIPs(env, in)
	for i := range s.Ports {
		p := &s.Ports[i]
		if !slices.Contains(env.Capabilities.Protocols, p.Protocol) {
			u.problem(SeverityError, fmt.Sprintf("ports[%d].protocol", i), "%s mode does not carry %s: port %d is not served; it carries %s",
				env.Capabilities.Mode, p.Protocol, p.Port, list(env.Capabilities.Protocols))
			continue
		}
		for _, vip := range u.unreserved(env, i, vips) {
			u.claim(env, c, p, Key{vip, p.Port, p.Protocol}, false)
		}
		for _, a := range u.nodePortAddresses(env, i) {
			u.claim(env, c, p, Key{a, p.NodePort, p.Protocol}, true)
		}
	}
	if len(c.joined.used) == 0 && len(u.claims) > 0 {
		u.problem(SeverityWarning, "endpoints", "there are none: %s", s.NoEndpoints.heard())
		u.problems[len(u.problems)-1].Kind = Idle
	}
	// Where a node port falls on a port of the service's own VIP, the VIP's counts.
	slices.SortStableFunc(u.claims, func(a, b *Frontend) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(oneIf(a.NodePort), oneIf(b.NodePort)))
	})
	u.claims = slices.CompactFunc(u.claims, func(a, b *Frontend) bool { return a.Key == b.Key })
	return u
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// claim adds the frontend of port p at key.
func (u *unit) claim(env *Env, c *serviceInputs, p *Port, key Key, nodePort bool) {
	s := u.service
	backends, back := c.backends(env, p, key.AddrPort())
	if back {
		u.leadsBack(p, key)
	}
	u.short(p, key.Addr, backends.standing)
	f := &Frontend{
		Key: key, NodePort: nodePort, Service: s.Name, Port: p.Name, Policy: s.Policy, Backends: backends.all, Sources: s.SourceRanges,
	}
	if s.Affinity == ClientIPAffinity {
		f.AffinityTimeout = s.AffinityTimeout
	}
	if key.Proto == UDP {
		f.IdleTimeout = defaultUDPIdle
	}
	if s.IdleTimeout != nil {
		f.IdleTimeout = *s.IdleTimeout
	}
	env.Capabilities.fit(f)
	f.Roams = !nodePort && f.choosesAsOthers() && c.in.PolicyOf(key.Addr).wanders()
	u.claims = append(u.claims, f)
}

// choosesAsOthers reports whether another host would lead a connection in the middle to the endpoint that it has, unchanged. One
// whose source was translated can't be.
func (f *Frontend) choosesAsOthers() bool {
	return f.Proto == TCP && f.Forward == NATForward && f.SNAT != AlwaysSNAT && (f.Scheduler == Maglev || f.Scheduler == SourceHash)
}

// leadsBack reports an endpoint of port p that is at key, where the service itself answers.
func (u *unit) leadsBack(p *Port, key Key) {
	field := "endpoints"
	for i := range u.service.Endpoints {
		if e := &u.service.Endpoints[i]; e.Address == key.Addr && e.TargetPort(p) == key.Port {
			field = fmt.Sprintf("endpoints[%d].address", i)
		}
	}
	u.problem(SeverityError, field, "%s is where the service itself answers: connections would loop, so the endpoint gets none from there; "+
		"give it another address or port", key)
}

// firstNodePort is the least node port that a service from etcd may open without more ado: below are those of the host's
// own services, such as 22.
const firstNodePort = 1024

// nodePortAddresses are the local addresses that port i of the service opens its node port on. It reports that the port may
// not be opened on some.
func (u *unit) nodePortAddresses(env *Env, i int) (open []netip.Addr) {
	p := &u.service.Ports[i]
	if p.NodePort == 0 {
		return nil
	}
	field := fmt.Sprintf("ports[%d].node_port", i)
	guarded := p.NodePort < firstNodePort && fromEtcd(u.service)
	refused, what := false, ""
	for _, a := range env.NodePortAddresses {
		if len(env.NodePorts) > 0 && !containsAddr(env.NodePorts, a) {
			continue
		}
		is := ""
		if fromEtcd(u.service) {
			is = env.refusesPort(Key{a, p.NodePort, p.Protocol})
		}
		switch {
		case is != "":
			what = is
		case guarded && !containsAddr(env.Allowed, a):
			refused = true
		default:
			open = append(open, a)
		}
	}
	if what != "" {
		u.refuse(Reserving, field, "node port %d/%s is not opened: %s, and %s", p.NodePort, p.Protocol, what, portAdvice)
	}
	if refused {
		u.refuse(Refused, field, "node port %d/%s is not opened: services from etcd may open ports below %d only on addresses that addresses.allowed of the node's configuration contains; choose a higher port",
			p.NodePort, p.Protocol, firstNodePort)
	}
	return open
}

// unreserved are those of vips on which the service may claim its port i. It reports the others.
func (u *unit) unreserved(env *Env, i int, vips []netip.Addr) (open []netip.Addr) {
	p := &u.service.Ports[i]
	for _, vip := range vips {
		key := Key{vip, p.Port, p.Protocol}
		what := ""
		if fromEtcd(u.service) && slices.Contains(env.Local, vip) {
			what = env.refusesPort(key)
		}
		if what == "" {
			open = append(open, vip)
			continue
		}
		u.refuse(Reserving, fmt.Sprintf("ports[%d].port", i), "%s is not served: it is this node's own address, %s, and %s", key, what, portAdvice)
	}
	return open
}

// allowedVIPs returns the VIPs that the service may claim here and now, and reports those that it may not.
func (u *unit) allowedVIPs(env *Env, in *Inputs) []netip.Addr {
	var allowed []netip.Addr
	for i, vip := range u.service.Addresses() {
		owned := in.PolicyOf(vip).Hold == HoldOne // it comes and goes
		if why := u.refusal(env, vip, owned); why != "" {
			u.refuse(Refused, u.service.vipField(i), "%s"+notServed+"%s", vip, why)
			continue
		}
		if env.LocalOnly && !owned && !vip.IsLoopback() && !slices.Contains(env.Local, vip) {
			continue // it rests until its owner brings it
		}
		allowed = append(allowed, vip)
	}
	return allowed
}

// vipField is the field that address i of Addresses comes from. Which "auto" an allocated one is for is unknown.
func (s *Service) vipField(i int) string {
	if i < len(s.VIPs) {
		return fmt.Sprintf("vips[%d]", i)
	}
	return "vips"
}

// refusal says why vip may not be claimed; "" means it may. Owned: one host of several brings it.
func (u *unit) refusal(env *Env, vip netip.Addr, owned bool) string {
	if fromEtcd(u.service) {
		if why := env.refusesVIP(vip, owned); why != "" {
			return why
		}
	}
	if len(env.Allowed) > 0 && !containsAddr(env.Allowed, vip) {
		return "addresses.allowed of this node's configuration does not contain it"
	}
	return ""
}

func containsAddr(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (u *unit) problem(severity Severity, field, format string, args ...any) {
	u.problems = append(u.problems, Problem{
		Severity: severity, Origin: u.service.Origin.At(field), Service: u.service.Name, Field: field,
		Text: fmt.Sprintf(format, args...),
	})
}

// refuse reports what the node does not grant the service.
func (u *unit) refuse(kind ProblemKind, field, format string, args ...any) {
	u.problem(SeverityError, field, format, args...)
	u.problems[len(u.problems)-1].Kind = kind
}

// trust reports what a service from etcd asks for beside addresses that this node does not grant it.
func (u *unit) trust(env *Env) {
	if _, ok := u.service.LogsTo(); !ok && u.service.AccessLog != nil {
		u.refuse(Refused, "access_log", `services from etcd name no file of a node: write "journal" or "", or have the service in the node's own file; the node's access_log in [userspace] is used instead`)
	}
	if field, path := env.RefusedFile(u.service); field != "" {
		u.refuse(Refused, field, "%q is not in %s: checks of services from etcd use files of that folder only, and this one is not made. Put the file there, or set health.tls_dir in the host's configuration", path, env.tlsDir())
	}
	h := u.service.Health
	switch {
	case WantsUser(u.service):
		u.refuse(Refused, "health.user", "programs of checks from etcd run as %s, never as %s: leave user out, or have the service in the node's own file; nothing is run", ExecUser, h.User)
	case !fromEtcd(u.service) || h == nil || h.Type != ExecHealth || env.AllowExec:
	case h.From != HealthFromFleet:
		u.refuse(Refused, "health.type", "checks of services from etcd may run programs only on nodes whose configuration has health.allow_exec = true; nothing is run elsewhere")
	case !env.FleetExec:
		u.problem(SeverityWarning, "health.type", "checks of services from etcd may run programs only where the node's configuration has health.allow_exec = true, and no node of the fleet has it: these endpoints are not checked")
	}
}

// unbuilt reports the settings that this version supports in no mode.
func (u *unit) unbuilt() {
	s := u.service
	if s.Health != nil && s.Health.From == HealthFromFleet && !fromEtcd(s) {
		u.problem(SeverityNearest, "health.from", "a fleet checks only services that are in etcd, where vipctl apply puts them: this node checks these endpoints itself")
	}
	if s.SlowStart > 0 && !s.Scheduler.SharesByWeight() {
		u.problem(SeverityNearest, "slow_start", "scheduler %s shares nothing by weight, which is what ramps up: endpoints get their whole share at once", s.Scheduler)
	}
}

// short reports, once for each port and family, that too few endpoints are healthy.
func (u *unit) short(p *Port, vip netip.Addr, n standing) {
	s := u.service
	is := Problem{Port: s.PortWords(p, vip)}
	switch {
	case n.panics(s.Health):
		is.Kind, is.Field = InPanic, "health.panic_threshold"
		is.Text = fmt.Sprintf("%d of %d endpoints are up, fewer than %d percent: all of them are used, healthy or not", n.healthy, n.all, s.Health.PanicThreshold)
	case n.out():
		is.Kind, is.Field, is.Text = Outage, "no_endpoints", "all endpoints fail their checks: "+s.NoEndpoints.heard()
	case n.idle() != "":
		is.Kind, is.Field, is.Text = Idle, "endpoints", "no endpoint takes new connections: "+n.idle()
	default:
		return
	}
	if !slices.ContainsFunc(u.problems, func(q Problem) bool { return q.Kind == is.Kind && q.Port == is.Port && q.Text == is.Text }) {
		is.Severity, is.Origin, is.Service = SeverityWarning, s.Origin.At(is.Field), s.Name
		u.problems = append(u.problems, is)
	}
}

// heard says what clients see.
func (n NoEndpoints) heard() string {
	if n == DropClients {
		return "clients hear nothing"
	}
	return "clients are refused"
}

// PortWords names port p of s at VIPs of the family of vip: "80/tcp", and the family where s has VIPs of both.
func (s *Service) PortWords(p *Port, vip netip.Addr) string {
	words := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	switch other := slices.ContainsFunc(s.Addresses(), func(a netip.Addr) bool { return a.Is4() != vip.Is4() }); {
	case other && vip.Is4():
		return words + " (IPv4)"
	case other:
		return words + " (IPv6)"
	}
	return words
}

// unallocated reports VIPs that are asked of pools, and are not there.
func (u *unit) unallocated() {
	s := u.service
	switch {
	case len(s.Allocated) >= len(s.Pools):
	case !fromEtcd(s):
		u.problem(SeverityError, "vips", `"auto" asks for an address of a pool, and pools are in etcd only: write an address here, or move the service to etcd`)
	default:
		u.problem(SeverityError, "vips", `only %d of the %d addresses that "auto" asks for are allocated: vipctl apply does that`,
			len(s.Allocated), len(s.Pools))
	}
}

// list writes words for messages.
func list[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}
