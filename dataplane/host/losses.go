package host

import (
	"errors"
	"fmt"

	"vipd/balancer"
)

// loss is what is the matter while some of the guard can't be had.
type loss struct {
	// part is the part that it needs; "": any.
	part string
	// set is the set in which something has to be wanted for it to matter; forward: it matters to modes that forward.
	set      string
	forward  bool
	severity balancer.Severity
	text     string
}

func losses() []loss {
	return []loss{
		{"held addresses", heldSet, false, balancer.SeverityWarning, "addresses that vipd holds answer on every port that this host listens on"},
		{marksPart, restrictedSet, false, balancer.SeverityError, "source_ranges are not enforced"},
		{marksPart, silentSet, false, balancer.SeverityNearest, "clients of services without endpoints and no_endpoints = \"drop\" are rejected"},
		{"verdicts", rejectedSet, false, balancer.SeverityWarning, "clients of a service without endpoints may reach a program of this host that listens on its port"},
		{marksPart, frontendsSet, true, balancer.SeverityError, "services' connections are not recognised: replies miss this node where it has to be their source, and a policy DROP stops them"},
		{"verdicts", frontendsSet, true, balancer.SeverityWarning, "services do not work where the policy of FORWARD or INPUT is DROP, nor for clients and endpoints behind one interface"},
		{"masquerade", frontendsSet, true, balancer.SeverityError, "node ports, snat = \"always\", clients and endpoints behind one interface, and endpoints that are their own clients do not work"},
	}
}

// problems says what can't be had while it is needed.
func (g *guard) problems() []balancer.Problem {
	var out []balancer.Problem
	for _, l := range losses() {
		m := g.set(l.set)
		if len(m.count) == 0 && len(m.asked) == 0 || l.forward && !g.plan.mode.Forward {
			continue
		}
		err := g.failed
		if l.set == restrictedSet {
			err = errors.Join(err, g.unsourced)
		}
		for _, p := range g.parts {
			if p.def.name == l.part {
				err = errors.Join(err, p.failed)
			}
		}
		if err != nil {
			out = append(out, balancer.Problem{Severity: l.severity, Text: fmt.Sprintf("%s (%s): %v", l.text, g.family, err)})
		}
	}
	return out
}
