package explain

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/guard"
	"vipd/dataplane/host"
)

// choose adds steps that explain the choice of an endpoint, and lists f's endpoints.
func (n *Inputs) choose(a *Answer, f *balancer.Frontend) {
	who := a.Client.String()
	if f.AffinityPrefix > 0 {
		who = netip.PrefixFrom(f.AffinityClient(a.Client), f.AffinityPrefix).String()
	}
	scope := ""
	if f.AffinityScope != "" {
		scope = fmt.Sprintf(" (affinity_scope %s)", f.AffinityScope)
	}
	switch {
	case f.AffinityTimeout <= 0:
	case a.Sticky.IsValid():
		a.step("affinity", false, "%s stays on %s for %s after its last new connection; time left: %s%s", who, f.AddrOf(a.Sticky, a.To), f.AffinityTimeout, left(a.Left), scope)
	default:
		a.step("affinity", false, "client_ip for %s: no endpoint is remembered for %s%s", f.AffinityTimeout, who, scope)
	}
	if a.Choice != "" && f.Serves() && !a.Sticky.IsValid() {
		a.step("choice", false, "%s", a.Choice)
	}
	for _, b := range f.Backends {
		e := Endpoint{Address: f.AddrOf(b.Addr, a.To), State: b.State, Weight: b.Weight, Part: a.Probability(b.Addr), target: f.Target(b)}
		if n.Why != nil {
			e.Why = n.Why(f, b)
		}
		a.Endpoints = append(a.Endpoints, e)
	}
	if a.Sticky.IsValid() {
		a.Sticky = f.AddrOf(a.Sticky, a.To)
	}
	for i := range a.Shares {
		a.Shares[i].Backend = f.AddrOf(a.Shares[i].Backend, a.To)
	}
}

// wayBack describes which client address each endpoint sees, and whether the reply returns through
// this node.
func (n *Inputs) wayBack(a *Answer, f *balancer.Frontend, from host.Route) {
	needs := n.Dataplane.Traits().Needs
	if n.translatesDirect(a, f) {
		translated := *f
		translated.Forward = balancer.NATForward
		f = &translated
	}
	forwards, there := needs.Forward && !from.Local && (f.Forward == "" || f.Forward == balancer.NATForward), ""
	if forwards && !needs.LocalIn { // virtual servers forward clients' packets without ip_forward
		there = host.Unforwarded(a.Client, from)
	}
	var off []string
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		if e.State == balancer.Active {
			to, err := host.RouteTo(e.Address.Addr())
			if err != nil {
				e.Why = strings.TrimPrefix(e.Why+"; "+err.Error(), "; ")
			}
			path := guard.Path{Local: from.Local, In: from.Index, Out: to.Index, EndpointLocal: to.Local}
			e.SNAT, e.Source, e.Lost = guard.SourceOf(f, needs, path)
			if forwards && !to.Local && e.Part > 0 {
				e.stopped = cmp.Or(there, host.Unforwarded(e.Address.Addr(), to))
			}
			if e.stopped != "" && !slices.Contains(off, e.stopped) {
				off = append(off, e.stopped)
			}
		}
		a.step("endpoint", e.Lost && e.Part > 0 || !f.Serves(), "%s", e.text(a.Client))
	}
	if len(a.Endpoints) == 0 {
		a.step("endpoint", true, "there is no endpoint")
	}
	if f.Forward == balancer.DRForward {
		n.neighbors(a, from)
	}
	for _, name := range off {
		a.step("forward", true, "this host does not forward packets between %s and endpoints on other hosts: sysctl -w %s=1", a.Client, name)
	}
}

// text describes an endpoint in one line.
func (e *Endpoint) text(client netip.Addr) string {
	part := "-"
	if e.Part > 0 {
		part = fmt.Sprintf("%.4g%%", math.Round(e.Part*1000)/10)
	}
	text := fmt.Sprintf("%-21s %5s  %s, weight %d", e.Address, part, e.State, e.Weight)
	if e.Why != "" {
		text += "; " + e.Why
	}
	if e.State != balancer.Active {
		return text
	}
	sees := client.String()
	if e.SNAT {
		sees = "this node"
	}
	return text + "; sees " + sees + ": " + e.Source
}

// summarize sets the verdict and its summary, which follow from the endpoints that can be chosen.
func (n *Inputs) summarize(a *Answer, f *balancer.Frontend) {
	var led, lost, silent []string
	stopped, mostly := 0, 0
	for _, e := range a.Endpoints {
		if e.Part > 0 {
			led = append(led, e.Address.String())
			if e.Lost {
				lost = append(lost, e.Address.String())
			}
			if e.stopped != "" {
				stopped++
			}
			if e.silent != "" {
				silent = append(silent, e.Address.String()+" "+e.silent)
			}
			if e.mostly {
				mostly++
			}
		}
	}
	switch {
	case !f.Serves() && f.NoEndpoints == balancer.DropClients:
		a.verdict(Dropped, "dropped: no endpoint of %s gets new connections, and no_endpoints is drop", f.Service)
	case !f.Serves():
		a.verdict(Refused, "refused: no endpoint of %s gets new connections", f.Service)
	case len(led) == 0 && bounded(f):
		a.verdict(Refused, "refused: each endpoint of %s has reached its max_connections", f.Service)
	case len(led) == 0:
		a.verdict(Lost, "not served: the kernel has no rule that leads to an endpoint of %s", f.Service)
	case stopped == len(led):
		a.verdict(Dropped, "dropped: this host does not forward packets between %s and the endpoints of %s", a.Client, f.Service)
	case len(lost) == len(led):
		a.verdict(Lost, "lost: answers from %s bypass this node, unless its routes lead through this node", strings.Join(lost, ", "))
	case mostly == len(led):
		a.verdict(Dropped, "not answered: %s", strings.Join(silent, "; "))
	case len(led) == 1:
		a.verdict(Served, "served by %s", led[0])
	default:
		a.verdict(Served, "served by one of %d endpoints", len(led))
	}
	if a.Verdict == Served && len(silent) > 0 {
		text := strings.Join(silent, "; ")
		if len(led) == 1 {
			text = "it" + strings.TrimPrefix(text, led[0])
		}
		a.Summary += ", but " + text
		return
	}
	if a.Verdict == Served && slices.ContainsFunc(a.Steps, func(s Step) bool { return s.Wrong }) {
		a.Summary += ", unless a problem marked with ! prevents that"
	}
}

// bounded reports whether every backend that gets new connections has a connection limit. If so and
// no backend can be chosen, all backends have reached their limit.
func bounded(f *balancer.Frontend) bool {
	return !slices.ContainsFunc(f.Backends, func(b balancer.Backend) bool { return b.State == balancer.Active && b.MaxConnections == 0 })
}
