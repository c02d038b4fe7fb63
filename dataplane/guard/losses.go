package guard

import (
	"fmt"

	"vipd/balancer"
)

// loss represents a feature that does not work while the guard is unavailable.
type loss struct {
	// set is the set whose entries need the feature. forward reports whether only forwarding modes
	// need it.
	set      string
	forward  bool
	severity balancer.Severity
	text     string
}

func losses() []loss {
	return []loss{
		{ownedSet, false, balancer.SeverityError, "VIPs with hold = \"one\" are not served"},
		{heldSet, false, balancer.SeverityWarning, "addresses that vipd holds answer on every port that this host listens on"},
		{restrictedSet, false, balancer.SeverityError, "source_ranges are not enforced"},
		{silentSet, false, balancer.SeverityNearest, "services without endpoints reject clients despite no_endpoints = \"drop\""},
		{rejectedSet, false, balancer.SeverityWarning, "clients of a service without endpoints might reach a program on this host that listens on its port"},
		{frontendsSet, true, balancer.SeverityError, "node ports, snat = \"always\", clients and endpoints behind one interface, and endpoints that are their own clients do not work"},
		{clampsSet, false, balancer.SeverityWarning, "mss is not enforced"},
		{directSet, true, balancer.SeverityWarning, "this node tracks dr and tunnel connections, but sees only half of their packets: they fail if the policy of INPUT or OUTPUT is DROP"},
	}
}

// lost returns a problem with this reason for each required feature that is unavailable.
func (w *wanted) lost(reason error) []balancer.Problem {
	var out []balancer.Problem
	for _, l := range losses() {
		m := w.set(l.set)
		if len(m.count) == 0 && len(m.asked) == 0 || l.forward && !w.mode.Forward {
			continue
		}
		text := l.text
		switch {
		case l.set != restrictedSet:
		case w.mode.Forward:
			text += ": services with source_ranges are not served, except services already in the kernel, which stay unchanged"
		default:
			text += " by the kernel: vipd enforces them itself"
		}
		out = append(out, w.problem(l.severity, text, reason))
	}
	return out
}

// lostLimits returns a problem for each service whose limits the kernel does not support.
func (w *wanted) lostLimits() (all []balancer.Problem) {
	if w.limits.fault == nil || !w.mode.Forward {
		return nil
	}
	for _, name := range w.limits.services() {
		p := w.problem(balancer.SeverityNearest, "limits are not enforced", w.limits.fault)
		p.Service, p.Field = name, "limits"
		all = append(all, p)
	}
	return all
}

func (w *wanted) problem(severity balancer.Severity, text string, reason error) balancer.Problem {
	return balancer.Problem{Severity: severity, Text: fmt.Sprintf("%s (%s): %v", text, w.family, reason)}
}
