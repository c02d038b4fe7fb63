package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/wording"
)

// Idle returns the reason why none of a frontend's backends gets new connections. states holds the
// backends' states. It returns "" if a backend gets new connections.
func Idle(states []balancer.BackendState) string {
	states = slices.DeleteFunc(slices.Clone(states), func(s balancer.BackendState) bool { return s == balancer.Removed })
	if len(states) == 0 {
		return "there are no endpoints"
	}
	words := []struct {
		state balancer.BackendState
		text  string
	}{
		{balancer.Down, "down"}, {balancer.Draining, "drained"}, {balancer.ZeroWeight, "at weight 0"},
		{balancer.Untested, "not checked yet"}, {balancer.Ejected, "ejected"}, {balancer.Insufficient, "unused, because fewer than min_usable can be used"}, {balancer.Remote, "on nodes that locality excludes"},
	}
	text, kinds := "", 0
	for _, w := range words {
		if !slices.Contains(states, w.state) {
			continue
		}
		if kinds++; kinds > 1 {
			text += " or "
		}
		text += w.text
	}
	if kinds == 0 || slices.Contains(states, balancer.Active) {
		return ""
	}
	return "all endpoints are " + text
}

// checkIdle looks for services and frontends without an endpoint for new connections. It skips a
// service if a problem already reports the missing endpoints. Services with the same cause share a
// finding.
func checkIdle(_ context.Context, o *observed) (found []Finding) {
	var causes []string
	idle := map[string][]string{}
	seen, served := map[[2]string]bool{}, map[balancer.Name]bool{}
	for _, f := range o.Frontends {
		served[f.Service] = served[f.Service] || f.Idle == ""
	}
	for _, f := range o.Frontends {
		name := string(f.Service)
		if f.Idle == "" || served[f.Service] && f.NodePort && len(f.Backends) == 0 {
			continue // a node port exists in both families, even if all endpoints are in one family
		}
		if o.reportsEndpoints(f.Service) {
			continue
		}
		if served[f.Service] {
			name += " at " + f.Key.String() // the service's other frontends are served
		}
		if seen[[2]string{f.Idle, name}] {
			continue
		}
		seen[[2]string{f.Idle, name}] = true
		if idle[f.Idle] == nil {
			causes = append(causes, f.Idle)
		}
		idle[f.Idle] = append(idle[f.Idle], name)
	}
	for _, cause := range causes {
		all, level := idle[cause], Problem
		if o.Status == nil {
			level = Warning // endpoints may be added or register after vipd starts
		}
		name, _, _ := strings.Cut(all[0], " ")
		found = append(found, Finding{
			Level: level, What: fmt.Sprintf("clients of %s are not served: %s", list(all), cause),
			Why: "their connections are refused or get no answer", Fix: "vipctl describe service " + name,
		})
	}
	if len(o.Frontends) > 0 && o.Status != nil && !slices.ContainsFunc(o.Frontends, func(f Frontend) bool { return f.Idle != "" }) {
		return orFine(found, "each service has an endpoint for new connections")
	}
	return found
}

// reportsEndpoints reports whether one of the service's problems is a lack of endpoints.
func (o *observed) reportsEndpoints(service balancer.Name) bool {
	return slices.ContainsFunc(o.Problems, func(p balancer.Problem) bool {
		return p.Service == service && (p.Field == "endpoints" || p.Kind == balancer.Outage || p.Kind == balancer.Unanswered)
	})
}

// defined reports whether a problem comes from a service or the configuration, and no other check
// reports it. vipctl check, plan, reload and status report such a problem with the same text.
func (o *observed) defined(p balancer.Problem) bool {
	if o.Status != nil && o.Status.Mode.Fallback && p.Field == "mode" || p.String() == o.ConfigProblem {
		return false // checkDaemon or checkConfig reports this problem
	}
	return p.Service != "" || p.Origin != balancer.Origin{}
}

// level returns the level of the finding about a problem. It is Warning for warnings, except for
// outages and unanswered connections, and otherwise Problem. Except for outages and unanswered
// connections, vipctl check, plan and reload fail for the same problems as doctor.
func level(p balancer.Problem) Level {
	if p.Severity == balancer.SeverityWarning && p.Kind != balancer.Outage && p.Kind != balancer.Unanswered {
		return Warning
	}
	return Problem
}

// checkProblems returns findings for problems with services and the configuration, the most severe
// first. Services with the same problem share a finding.
func checkProblems(_ context.Context, o *observed) (found []Finding) {
	const maxNamed = 8
	type cause struct {
		level       Level
		field, text string
	}
	byCause := map[cause][]balancer.Problem{}
	var causes []cause
	for _, p := range o.Problems {
		if !o.defined(p) {
			continue
		}
		c := cause{level(p), p.Field, p.PortText()}
		if byCause[c] == nil {
			causes = append(causes, c)
		}
		byCause[c] = append(byCause[c], p)
	}
	slices.SortStableFunc(causes, func(a, b cause) int { return cmp.Compare(a.level, b.level) }) // "problem" sorts before "warning"
	for _, c := range causes[:min(len(causes), maxNamed)] {
		found = append(found, findingOf(c.level, byCause[c], o.ConfigFile))
	}
	if more := len(causes) - maxNamed; more > 0 {
		found = append(found, Finding{Level: causes[maxNamed].level, What: wording.Count(more, "more problem") + " of services and the configuration", Fix: "vipctl status"})
	}
	return found
}

// findingOf returns one finding for problems that differ only in their service.
func findingOf(level Level, same []balancer.Problem, configFile string) Finding {
	p := same[0]
	f := Finding{Level: level, What: p.String(), Fix: "vipctl check " + configFile}
	if len(same) > 1 {
		var names []string
		for _, p := range same {
			names = append(names, string(p.Service))
		}
		p.Origin, p.Service = balancer.Origin{}, ""
		f.What = "services " + list(slices.Compact(names)) + ": " + p.String()
	}
	if slices.Contains([]balancer.ProblemKind{balancer.Idle, balancer.Outage, balancer.InPanic, balancer.Unanswered, balancer.Unchecked, balancer.Unapplied, balancer.Unresolved}, p.Kind) {
		f.Fix = "vipctl describe service " + string(same[0].Service)
	}
	return f
}
