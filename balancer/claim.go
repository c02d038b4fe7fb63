package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// compiledService is the result of compiling a single service: the frontends that it claims, and
// its problems.
type compiledService struct {
	service   *Service
	endpoints []*Endpoint  // that this node uses
	claims    []*Frontend  // sorted by key, without duplicates
	direct    []netip.Addr // VIPs that this host holds silently as their real server
	problems  []Problem
}

type serviceInputs struct {
	service *Service
	joined  joinedEndpoints
	in      *Inputs
	ports   map[portFamily]portBackends // filled on demand
}

// portFamily selects the backends of a frontend: its port and address family.
type portFamily struct {
	port *Port
	v4   bool
}

// portBackends holds the backends that all frontends of one port and family share.
type portBackends struct {
	all []Backend // shared by the frontends, so never changed
	endpointCounts
}

func newServiceInputs(env *Env, s *Service, in *Inputs) *serviceInputs {
	return &serviceInputs{service: s, joined: joinEndpoints(env, s, in), in: in, ports: map[portFamily]portBackends{}}
}

// defaultUDPIdle is the default of idle_timeout for UDP flows.
const defaultUDPIdle = 60 * time.Second

// compileService compiles a single service. The caller decides which service gets a contested key.
func compileService(env *Env, s *Service, in *Inputs) *compiledService {
	c := newServiceInputs(env, s, in)
	u := &compiledService{service: s, endpoints: c.joined.used}
	u.reportUntrusted(env)
	u.reportIneffective()
	u.reportUnallocated()
	u.reportUnused(&c.joined)
	u.reportUnresolved(in)
	if !u.isRealServer(env) {
		u.reportUnsupported(&env.Capabilities, c.joined.used)
		u.reportSmallWeights(&env.Capabilities, c.joined.used)
	}
	vips := u.allowedVIPs(env, in)
	if u.isRealServer(env) {
		if vips = u.holdDirect(env, in, vips); len(vips) == 0 {
			return u
		}
		u.reportUnsupported(&env.Capabilities, c.joined.used)
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if !u.serves(&env.Capabilities, i) {
			continue
		}
		for _, vip := range u.unreservedVIPs(env, in, i, vips) {
			u.claim(env, c, p, Key{vip, p.Port, p.Protocol}, false)
		}
		for _, a := range u.nodePortAddresses(env, i) {
			u.claim(env, c, p, Key{a, PortRange(p.NodePort), p.Protocol}, true)
		}
	}
	if len(c.joined.used) == 0 && len(u.claims) > 0 && in.looksUp(s) {
		u.problem(SeverityWarning, "endpoints", "the service has no endpoints: %s", s.NoEndpoints.clientOutcome()).Kind = Idle
	}
	u.reportFamiliesWithoutEndpoints(c.joined.used)
	// If a node port equals a port on the service's own VIP, the VIP's frontend wins.
	slices.SortStableFunc(u.claims, func(a, b *Frontend) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(boolToInt(a.NodePort), boolToInt(b.NodePort)))
	})
	u.claims = slices.CompactFunc(u.claims, func(a, b *Frontend) bool { return a.Key == b.Key })
	return u
}

// reportFamiliesWithoutEndpoints adds a warning for an address family in which the service has VIPs
// but no endpoint, if it has endpoints in the other family.
func (u *compiledService) reportFamiliesWithoutEndpoints(used []*Endpoint) {
	reported := map[bool]bool{}
	for _, f := range u.claims {
		is4 := f.Key.Addr.Is4()
		sameFamily := func(e *Endpoint) bool { return e.Address.Is4() == is4 }
		if len(used) == 0 || f.NodePort || reported[is4] || slices.ContainsFunc(used, sameFamily) {
			continue
		}
		reported[is4] = true
		u.problem(SeverityWarning, "endpoints", "the VIP %s has no endpoint of its address family: %s", f.Key.Addr, u.service.NoEndpoints.clientOutcome())
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (u *compiledService) claim(env *Env, c *serviceInputs, p *Port, key Key, nodePort bool) {
	s := u.service
	backends, back := c.backends(env, p, key.AddrPort())
	if back {
		u.reportLoop(p, key)
	}
	u.reportTooFewHealthy(p, key.Addr, backends.endpointCounts)
	f := &Frontend{
		Key: key, NodePort: nodePort, Service: s.Name, Port: p.Name, Policy: s.Policy, Backends: backends.all, Sources: s.SourceRanges,
	}
	f.setAffinity(s)
	f.setLimits(s.Limits)
	if key.Proto == UDP {
		f.IdleTimeout = defaultUDPIdle
	}
	if s.IdleTimeout != nil {
		f.IdleTimeout = *s.IdleTimeout
	}
	env.Capabilities.fit(f)
	if f.AcceptProxyProtocol {
		f.Sources, f.Clients = s.Trusted, s.SourceRanges
	}
	f.Movable = !nodePort && f.choosesConsistently() && c.in.PolicyOf(key.Addr).movable()
	u.claims = append(u.claims, f)
}

// choosesConsistently reports whether an established connection survives a move to another host. It
// does if that host forwards it to the same endpoint from the same source address.
func (f *Frontend) choosesConsistently() bool {
	return f.Proto == TCP && !f.Key.Port.IsRange() && f.Forward == NATForward && f.SNAT != AlwaysSNAT && (f.Scheduler == Maglev || f.Scheduler == SourceHash)
}

// reportLoop reports that an endpoint of port p has the address and port of key, the service's own
// frontend.
func (u *compiledService) reportLoop(p *Port, key Key) {
	field := "endpoints"
	for i := range u.service.Endpoints {
		if e := &u.service.Endpoints[i]; e.Address == key.Addr && e.TargetPort(p) == key.Port.First() {
			field = fmt.Sprintf("endpoints[%d].address", i)
		}
	}
	u.problem(SeverityError, field, "%s is the service's own frontend, so the endpoint gets no connections from it, because they would loop. "+
		"Give the endpoint another address or port", key)
}

// firstNodePort is the lowest node port that a service from etcd may open. Lower ports belong to
// the host's own programs, such as sshd.
const firstNodePort = 1024

// nodePortAddresses returns the local addresses on which port i of the service opens its node port.
// If addresses are refused, it adds a problem.
func (u *compiledService) nodePortAddresses(env *Env, i int) (open []netip.Addr) {
	p := &u.service.Ports[i]
	if p.NodePort == 0 {
		return nil
	}
	field := fmt.Sprintf("ports[%d].node_port", i)
	guarded := p.NodePort < firstNodePort && fromEtcd(u.service)
	refused, reservedFor := false, ""
	for _, a := range env.NodePortAddresses {
		if len(env.NodePorts) > 0 && !containsAddr(env.NodePorts, a) {
			continue
		}
		holder := ""
		if fromEtcd(u.service) {
			holder = env.reservedPort(Key{a, PortRange(p.NodePort), p.Protocol})
		}
		switch {
		case holder != "":
			reservedFor = holder
		case guarded && !containsAddr(env.Allowed, a):
			refused = true
		default:
			open = append(open, a)
		}
	}
	if reservedFor != "" {
		u.refuse(PortReserved, field, "node port %d/%s is not opened: %s, and %s", p.NodePort, p.Protocol, reservedFor, portAdvice)
	}
	if refused {
		u.refuse(Refused, field, "node port %d/%s is not opened: services from etcd can use ports below %d only if addresses.allowed contains the node's address. Choose a higher port",
			p.NodePort, p.Protocol, firstNodePort)
	}
	return open
}

// sshPort is the port of SSH. A range on a node's own address must not contain this port, because
// it would lock operators out.
const sshPort = 22

// unreservedVIPs returns the elements of vips on which the service may claim its port i. It adds a
// problem for each of the others.
func (u *compiledService) unreservedVIPs(env *Env, in *Inputs, i int, vips []netip.Addr) (open []netip.Addr) {
	p := &u.service.Ports[i]
	for _, vip := range vips {
		key := Key{vip, p.Port, p.Protocol}
		reservedFor := ""
		switch own := isOwn(env, in, vip); {
		case own && p.Port.IsRange() && p.Port.Contains(sshPort):
			u.refuse(PortReserved, element("ports", i, "port"), "%s is not served: it is this node's own address, and you could no longer reach the node by SSH. Choose a range without port %d, or another VIP", key, sshPort)
			continue
		case own && fromEtcd(u.service):
			reservedFor = env.reservedPort(key)
		}
		switch {
		case reservedFor == "":
			open = append(open, vip)
		case p.Port.IsRange():
			u.refuse(PortReserved, element("ports", i, "port"), "%s is not served: it is this node's own address, and programs on this node need %s. Choose a smaller range or another VIP", key, reservedFor)
		default:
			u.refuse(PortReserved, element("ports", i, "port"), "%s is not served: it is this node's own address, %s, and %s", key, reservedFor, portAdvice)
		}
	}
	return open
}

// isOwn reports whether an address is the node's own. A VIP that vipd owner or another program has
// added does not count.
func isOwn(env *Env, in *Inputs, a netip.Addr) bool {
	if !slices.Contains(env.Local, a) || env.ExternalVIPs {
		return false
	}
	return in.PolicyOf(a).Hold != HoldOne || slices.Contains(env.LocalInSubnets, a)
}

// allowedVIPs returns the VIPs that the service may claim now. It reports the VIPs that the node
// refuses. It silently omits VIPs that another program manages but has not added.
func (u *compiledService) allowedVIPs(env *Env, in *Inputs) []netip.Addr {
	var allowed []netip.Addr
	for i, vip := range u.service.Addresses() {
		policy := in.PolicyOf(vip)
		owned := policy.Hold == HoldOne // another host may currently hold vip
		if why := u.vipRefusal(env, vip, owned); why != "" {
			u.refuse(Refused, u.service.vipField(i), "%s"+notServed+"%s", vip, why)
			continue
		}
		if env.ExternalVIPs && !owned && !env.has(vip) {
			continue // the program that manages VIPs has not added it
		}
		if policy.Withdraw == WithdrawNoEndpoint && env.has(vip) {
			u.problem(SeverityWarning, u.service.vipField(i), `withdraw = "no_endpoint" has no effect on %s here, because this host has the address independently of vipd: `+
				"let only vipd add it, or remove withdraw", vip)
		}
		allowed = append(allowed, vip)
	}
	return allowed
}

// vipField returns the field that defines address i of Addresses. For an allocated address, it
// returns "vips", because nothing records which "auto" entry requested it.
func (s *Service) vipField(i int) string {
	if i < len(s.VIPs) {
		return fmt.Sprintf("vips[%d]", i)
	}
	return "vips"
}

// vipRefusal explains why the service may not claim vip. It returns "" if the service may claim
// vip. The parameter owned is true if only one host has the address at a time.
func (u *compiledService) vipRefusal(env *Env, vip netip.Addr, owned bool) string {
	if fromEtcd(u.service) {
		if why := env.refusesVIP(vip, owned); why != "" {
			return why
		}
	}
	if len(env.Allowed) > 0 && !containsAddr(env.Allowed, vip) {
		return "addresses.allowed in this node's configuration does not contain it"
	}
	return ""
}

func containsAddr(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// problem adds a problem and returns it. The pointer is valid until the next problem is added.
func (u *compiledService) problem(severity Severity, field, format string, args ...any) *Problem {
	u.problems = append(u.problems, Problem{
		Severity: severity, Origin: u.service.Origin.At(field), Service: u.service.Name, Field: field,
		Text: fmt.Sprintf(format, args...),
	})
	return &u.problems[len(u.problems)-1]
}

func (u *compiledService) refuse(kind ProblemKind, field, format string, args ...any) {
	u.problem(SeverityError, field, format, args...).Kind = kind
}

// reportUntrusted reports the settings of a service from etcd that this node does not allow, except
// VIPs and endpoints.
func (u *compiledService) reportUntrusted(env *Env) {
	if _, ok := u.service.LogsTo(); !ok && u.service.AccessLog != nil {
		u.refuse(Refused, "access_log", `services from etcd can't log to a file on a node: set "journal" or "". Until then, access_log in [userspace] applies`)
	}
	if field, path := env.RefusedFile(u.service); field != "" {
		u.refuse(Refused, field, "%q is not in %s, so checks from etcd may not use it, and this check does not run. Move the file, or set health.tls_dir", path, env.tlsDir())
	}
	checks := u.service.Checks()
	wanted, program := indexWantedUser(u.service), u.service.indexProgram()
	switch {
	case wanted >= 0:
		u.refuse(Refused, u.service.CheckField(wanted, "user"), "exec checks from etcd run as %s, never as %s, so this check does not run. Remove health.user, or define the service in the node's own file", ExecUser, checks[wanted].User)
	case !fromEtcd(u.service) || program < 0 || env.AllowExec:
	case checks[0].From != HealthFromFleet:
		u.refuse(Refused, u.service.CheckField(program, "type"), "exec checks from etcd run only on nodes with health.allow_exec = true")
	case !env.FleetExec:
		u.problem(SeverityWarning, u.service.CheckField(program, "type"), "exec checks from etcd run only with health.allow_exec = true, and no node in the fleet has that setting: these endpoints are not checked")
	}
}

func (u *compiledService) reportIneffective() {
	s := u.service
	if s.Health != nil && s.Health.From == HealthFromFleet && !fromEtcd(s) {
		u.problem(SeverityNearest, "health.from", "a fleet shares only the checks of services in etcd (vipctl apply), so this node checks these endpoints itself")
	}
	if i := slices.IndexFunc(s.Ports, func(p Port) bool { return p.Port.IsRange() }); i >= 0 && s.MSS > 0 {
		u.problem(SeverityNearest, "mss", "does not apply to ports[%d], because it is a range", i)
	}
	if s.SlowStart > 0 && !s.Scheduler.SharesByWeight() {
		u.problem(SeverityNearest, "slow_start", "scheduler %s ignores weights: endpoints get their full share at once", s.Scheduler)
	}
}

// reportTooFewHealthy adds a warning if a port has too few healthy endpoints, or none that may
// serve. It adds equal warnings for several VIPs only once.
func (u *compiledService) reportTooFewHealthy(p *Port, vip netip.Addr, n endpointCounts) {
	s := u.service
	problem := Problem{Port: s.PortWords(p, vip)}
	switch {
	case n.panics(s.Health):
		problem.Kind, problem.Field = InPanic, "health.panic_threshold"
		problem.Text = fmt.Sprintf("%d of %d endpoints are up, fewer than %d percent: all of them are used, healthy or not", n.healthy, n.all, s.Health.PanicThreshold)
	case n.allFailing():
		problem.Kind = Outage
		problem.Field = "no_endpoints"
		problem.Text = "all endpoints fail their checks: " + s.NoEndpoints.clientOutcome()
	case n.tooFew(s):
		problem.Field = "min_usable"
		problem.Text = fmt.Sprintf("fewer than %d endpoints are usable (%d): ", s.MinUsable, n.usable)
		if n.healthy > n.usable {
			problem.Text += "backups serve instead"
			break
		}
		problem.Kind = Outage
		problem.Text += s.NoEndpoints.clientOutcome()
	case n.idleReason() != "":
		problem.Kind = Idle
		problem.Field = "endpoints"
		problem.Text = "no endpoint accepts new connections: " + n.idleReason()
	default:
		return
	}
	same := func(q Problem) bool {
		return q.Kind == problem.Kind && q.Port == problem.Port && q.Text == problem.Text
	}
	if slices.ContainsFunc(u.problems, same) {
		return
	}
	problem.Severity = SeverityWarning
	problem.Origin = s.Origin.At(problem.Field)
	problem.Service = s.Name
	u.problems = append(u.problems, problem)
}

// clientOutcome returns a clause for messages: clients are refused, or get no answer.
func (n NoEndpoints) clientOutcome() string {
	if n == DropClients {
		return "clients get no answer"
	}
	return "clients are refused"
}

// PortWords describes port p of s for messages: "80/tcp". It adds the family of vip if s has VIPs
// of both families.
func (s *Service) PortWords(p *Port, vip netip.Addr) string {
	words := fmt.Sprintf("%s/%s", p.Port, p.Protocol)
	switch bothFamilies := slices.ContainsFunc(s.Addresses(), func(a netip.Addr) bool { return a.Is4() != vip.Is4() }); {
	case bothFamilies && vip.Is4():
		return words + " (IPv4)"
	case bothFamilies:
		return words + " (IPv6)"
	}
	return words
}

// reportUnallocated adds an error if the service has requested more addresses from pools than it
// has received.
func (u *compiledService) reportUnallocated() {
	s := u.service
	switch {
	case len(s.Allocated) >= len(s.Pools):
	case !fromEtcd(s):
		u.problem(SeverityError, "vips", `"auto" requests an address from a pool, and only etcd has pools: write an address, or move the service to etcd`)
	default:
		u.problem(SeverityError, "vips", `only %d of the %d addresses requested by "auto" are allocated: run vipctl apply`,
			len(s.Allocated), len(s.Pools))
	}
}

func joinWords[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}
