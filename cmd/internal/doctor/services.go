package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
)

// Idle says why a frontend whose backends are in these states gives no one new connections; "" means that it does.
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

// checkUnanswered reports the endpoints that leave new connections without an answer, as the running vipd has found.
func (v *visit) checkUnanswered() {
	if v.Status == nil {
		return
	}
	for _, p := range v.Status.Problems {
		if p.Kind == balancer.Unanswered {
			v.add(Finding{Level: Problem, What: string(p.Service) + ": " + p.Text, Mend: "vipctl describe service " + string(p.Service)})
		}
	}
}

// checkServices looks for services whose clients are not served. Those with the same cause share a finding.
func checkServices(_ context.Context, v *visit) {
	before := len(v.found)
	var causes []string
	of := map[string][]string{}
	seen := map[[2]string]bool{}
	served := map[balancer.Name]bool{}
	for _, f := range v.Frontends {
		served[f.Service] = served[f.Service] || f.Idle == ""
	}
	for _, f := range v.Frontends {
		name := string(f.Service)
		if served[f.Service] {
			if f.NodePort && len(f.Backends) == 0 {
				continue // nobody asked for the node's addresses of the other family
			}
			name += " at " + f.Key.String() // its other frontends have endpoints
		}
		key := [2]string{f.Idle, name}
		if f.Idle == "" || seen[key] {
			continue
		}
		seen[key] = true
		if of[f.Idle] == nil {
			causes = append(causes, f.Idle)
		}
		of[f.Idle] = append(of[f.Idle], name)
	}
	for _, cause := range causes {
		all, level := of[cause], Problem
		if v.Status == nil {
			level = Warning // endpoints may still be written, or register
		}
		name, _, _ := strings.Cut(all[0], " ")
		v.add(Finding{
			Level: level, What: fmt.Sprintf("clients of %s are not served: %s", list(all), cause),
			Why: "their connections are refused, or hear nothing", Mend: "vipctl describe service " + name,
		})
	}
	v.checkUnanswered()
	if len(v.found) == before && len(v.Frontends) > 0 && v.Status != nil {
		v.add(fine("each service has an endpoint for new connections"))
	}
}
