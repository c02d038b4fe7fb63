package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
)

// Idle returns the reason why no backend in these states gets new connections; "" means that a backend does.
func Idle(states []balancer.BackendState) string {
	states = slices.DeleteFunc(slices.Clone(states), func(s balancer.BackendState) bool { return s == balancer.Removed })
	if len(states) == 0 {
		return "there are no endpoints"
	}
	words := []struct {
		state balancer.BackendState
		text  string
	}{
		{balancer.Down, "down"}, {balancer.Draining, "drained"}, {balancer.ZeroWeight, "of weight 0"},
		{balancer.Untested, "not checked yet"}, {balancer.Ejected, "ejected"}, {balancer.Remote, "on other nodes than locality allows"},
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

// checkIdle looks for services whose clients are not served. Services with the same cause share a finding.
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
			continue // a service has node ports in both families, whether it needs them or not
		}
		if served[f.Service] {
			name += " at " + f.Key.String() // its other frontends have endpoints
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
			level = Warning // endpoints may still be written, or register
		}
		name, _, _ := strings.Cut(all[0], " ")
		found = append(found, Finding{
			Level: level, What: fmt.Sprintf("clients of %s are not served: %s", list(all), cause),
			Why: "their connections are refused or get no answer", Mend: "vipctl describe service " + name,
		})
	}
	if len(o.Frontends) > 0 && o.Status != nil {
		return orFine(found, "each service has an endpoint for new connections")
	}
	return found
}

// refuses reports whether a problem keeps a part of a service from being served. Other checks report problems of its endpoints.
func refuses(p balancer.Problem) bool {
	return p.Service != "" && p.Severity == balancer.SeverityError &&
		!slices.Contains([]balancer.ProblemKind{balancer.Idle, balancer.Outage, balancer.InPanic, balancer.Unanswered}, p.Kind)
}

// checkRefused names the services that are not served as written, with the first reason of each.
func checkRefused(_ context.Context, o *observed) (found []Finding) {
	const maxNamed = 5
	var names []string
	for _, p := range o.Problems {
		if !refuses(p) || slices.Contains(names, string(p.Service)) {
			continue
		}
		if names = append(names, string(p.Service)); len(names) <= maxNamed {
			found = append(found, problem(p.String(), "", "vipctl check "+o.ConfigFile))
		}
	}
	if more := len(names) - maxNamed; more > 0 {
		found = append(found, problem("more services are not served as written: "+list(names[maxNamed:]), "", "vipctl status"))
	}
	return found
}

// checkUnanswered lists the endpoints that leave new connections without an answer, as the running vipd has found.
func checkUnanswered(_ context.Context, o *observed) (found []Finding) {
	for _, p := range o.Problems {
		if p.Kind == balancer.Unanswered {
			found = append(found, problem(string(p.Service)+": "+p.Text, "", "vipctl describe service "+string(p.Service)))
		}
	}
	return found
}
