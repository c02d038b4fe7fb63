package guard

import (
	"errors"
	"fmt"

	"vipd/balancer"
)

// loss is a part of the guard that is unavailable.
type loss struct {
	// part is the part that it needs, and kind the set that not every kernel has; "" means none.
	part, kind string
	// set is the set in which something has to be wanted for it to matter; forward: it matters to modes that forward.
	set     string
	forward bool
	// filters: iptables' filters do it where the guard does not let connections through them.
	filters  bool
	severity balancer.Severity
	text     string
}

func losses() []loss {
	return []loss{
		{othersPart, "", ownedSet, false, false, balancer.SeverityError, "VIPs with hold = \"one\" are not served"},
		{"held addresses", "", heldSet, false, false, balancer.SeverityWarning, "addresses that vipd holds answer on every port that this host listens on"},
		{marksPart, allowedSet, restrictedSet, false, false, balancer.SeverityError, "source_ranges are not enforced"},
		{marksPart, "", silentSet, false, false, balancer.SeverityNearest, "clients of services without endpoints and no_endpoints = \"drop\" are rejected"},
		{verdictsPart, "", rejectedSet, false, false, balancer.SeverityWarning, "clients of a service without endpoints may reach a program of this host that listens on its port"},
		{marksPart, "", frontendsSet, true, false, balancer.SeverityError, "services' connections are not recognised: replies miss this node where it has to be their source, and a policy DROP stops them"},
		{verdictsPart, "", frontendsSet, false, true, balancer.SeverityWarning, "services do not work where the policy of FORWARD or INPUT is DROP"},
		{verdictsPart, "", frontendsSet, true, false, balancer.SeverityWarning, "clients and endpoints behind one interface do not work"},
		{"masquerade", "", frontendsSet, true, false, balancer.SeverityError, "node ports, snat = \"always\", clients and endpoints behind one interface, and endpoints that are their own clients do not work"},
		{clampsPart, "", clampsSet, false, false, balancer.SeverityWarning, "mss is left to the ends of connections and their links"},
		{"", arrivedSet, frontendsSet, true, false, balancer.SeverityError, "clients and endpoints behind one interface do not work in ipvs mode, but with snat = \"always\""},
		{untrackedPart, "", directSet, true, false, balancer.SeverityWarning, "connections by dr and tunnel are tracked, though this node sees half of them: where the policy of INPUT or OUTPUT is DROP they do not work"},
		{"direct verdicts", "", directSet, true, false, balancer.SeverityWarning, "services with forward = \"dr\" or \"tunnel\" do not work where the policy of INPUT or OUTPUT is DROP"},
	}
}

// lost says what is needed and unavailable: each loss, with its reason.
func (w *wanted) lost(why func(loss) error) []balancer.Problem {
	var out []balancer.Problem
	for _, l := range losses() {
		m := w.set(l.set)
		if len(m.count) == 0 && len(m.asked) == 0 || l.forward && !w.mode.Forward {
			continue
		}
		err := why(l)
		if err == nil {
			continue
		}
		text := l.text
		switch {
		case l.set != restrictedSet:
		case w.mode.Forward:
			text += ": services that have them are not served, but for those that are in the kernel already, which go on as they are"
		default:
			text += " by the kernel: vipd does it itself"
		}
		out = append(out, balancer.Problem{Severity: l.severity, Text: fmt.Sprintf("%s (%s): %v", text, w.family, err)})
	}
	return out
}

// problems implements form.
func (g *legacy) problems() []balancer.Problem {
	return g.lost(func(l loss) error {
		if l.filters && !g.mode.Forward { // it may be that nothing but VIPs on loopback can be had here
			return nil
		}
		err := g.failed
		if l.kind != "" && g.uses(g.set(l.kind)) {
			err = errors.Join(err, g.set(l.kind).lacking)
		}
		for _, p := range g.parts {
			if p.def.name == l.part {
				err = errors.Join(err, p.failed)
			}
		}
		return err
	})
}
