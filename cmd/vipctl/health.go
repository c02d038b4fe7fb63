package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/dataplane/probe"
)

// verdict is the verdict on an endpoint, and for how long it has stood: "down 3m12s".
func verdict(p *cli.Printer, e *api.Endpoint) string {
	return strings.TrimSpace(string(e.Health) + " " + since(p, e))
}

// since is for how long the endpoint has been up or down.
func since(p *cli.Printer, e *api.Endpoint) string {
	if e.Check == nil {
		return ""
	}
	return elapsed(p, e.Check.Since)
}

// why says what is wrong with an endpoint, or on its way; "" where nothing is.
func why(e *api.Endpoint) string {
	var all []string
	switch k := e.Check; {
	case k == nil && e.Unchecked != "":
		all = append(all, "not checked: "+e.Unchecked)
	case k == nil:
	case k.Fleet != nil && k.Fleet.Here != "":
		all = append(all, k.Fleet.Here)
	case k.LastOutcome == "":
		all = append(all, "not checked yet")
	case k.LastOutcome == string(health.NotRun):
		all = append(all, k.LastText)
	case k.Against > 0:
		all = append(all, fmt.Sprintf("%s %d of %d: %s", k.LastOutcome, k.Against, k.Needed, k.LastText))
	case e.Health == balancer.HealthDown:
		all = append(all, k.LastText)
	}
	return strings.Join(slices.Concat(all, besides(e)), "; ")
}

// besides says what there is to know of how an endpoint is used besides what its check has seen.
func besides(e *api.Endpoint) (all []string) {
	if k := e.Check; k != nil && k.Fleet != nil && k.Fleet.Alone {
		all = append(all, "checked by this node alone")
	}
	if by := takenOut(e); by != "" {
		all = append(all, by)
	}
	if x := e.Ejection; x != nil {
		all = append(all, fmt.Sprintf("connects fail: %s; ejected until %s at the latest", x.Cause, x.Until.Local().Format(time.TimeOnly)))
	}
	if e.Health == balancer.HealthDown && e.State == balancer.Active {
		all = append(all, "used: panic")
	}
	if e.Cut {
		all = append(all, "its connections were cut")
	}
	if e.Ramp > 0 {
		all = append(all, fmt.Sprintf("ramping up: %d%% of its weight", e.Ramp))
	}
	return all
}

// takenOut says who keeps an endpoint from new connections, and why; "" means nothing does.
func takenOut(e *api.Endpoint) string {
	o, what := e.Override, ""
	var by balancer.Signature
	switch {
	case e.State == balancer.Removed:
		return "removed from its service"
	case e.State == balancer.Draining && (o == nil || o.Draining == nil):
		return "draining in its definition"
	case e.State == balancer.Draining:
		what = "drained by "
		_, by = o.Signed()
	case e.State == balancer.ZeroWeight && o != nil && o.Weight != nil:
		what = "weight 0, set by "
		by, _ = o.Signed()
	default:
		return ""
	}
	what += cmp.Or(by.By, "hand")
	if by.Reason != "" {
		what += ": " + by.Reason
	}
	return what
}

// weights writes the weights of endpoints. While some of a port ramp up, the weights in use are multiples, so that there
// are whole numbers for parts of small ones: then what they stand for is shown, as "10 at 20%".
func weights(endpoints []api.Endpoint) []string {
	type port struct {
		service balancer.Name
		name    string
	}
	ramping := map[port]bool{}
	for i := range endpoints {
		if e := &endpoints[i]; e.Ramp > 0 {
			ramping[port{e.Service, e.Port}] = true
		}
	}
	all := make([]string, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		weight := e.Weight
		if ramping[port{e.Service, e.Port}] && e.State == balancer.Active {
			weight, _ = e.Override.Effective(e.Configured, false)
		}
		if all[i] = strconv.Itoa(weight); e.Ramp > 0 {
			all[i] += fmt.Sprintf(" at %d%%", e.Ramp)
		}
	}
	return all
}

func nextCheck(p *cli.Printer, k *api.Check) string {
	switch {
	case k == nil:
		return ""
	case k.Checking:
		return "now"
	case k.Next.IsZero(): // while it is watched
		return ""
	}
	return ahead(p, k.Next)
}

// lastResult is what the latest check has seen, and how long ago.
func lastResult(p *cli.Printer, k *api.Check) string {
	if k == nil || k.LastOutcome == "" {
		return ""
	}
	if k.Last.IsZero() { // while it is watched
		return k.LastText
	}
	return k.LastText + ", " + ago(p, k.Last)
}

// describedChecks is the health of a service's endpoints, of those where there is something to say.
func describedChecks(p *cli.Printer, s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "PORT", Skip: len(s.Ports) < 2}, table.Column{Title: "HEALTH", Style: stateStyle},
		table.Column{Title: "SINCE", Right: true}, table.Column{Title: "NEXT"}, table.Column{Title: "LAST RESULT"})
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		all, verdict := besides(e), string(e.Health)
		if k := e.Check; k != nil && k.Fleet != nil && k.Fleet.Here != "" {
			all = append([]string{k.Fleet.Here}, all...)
		}
		if k := e.Check; k != nil {
			last := lastResult(p, k)
			if k.Against > 0 {
				last = fmt.Sprintf("%s (%s %d of %d)", last, k.LastOutcome, k.Against, k.Needed)
			}
			if last != "" {
				all = append([]string{last}, all...)
			}
			verdict = cmp.Or(verdict, "unknown")
		} else if e.Unchecked != "" {
			all = append([]string{"not checked: " + e.Unchecked}, all...)
		} else if e.Ejection == nil && e.Ramp == 0 {
			continue
		}
		t.Row(e.Address, e.Port, verdict, since(p, e), nextCheck(p, e.Check), strings.Join(all, "; "))
	}
	return t
}

// rulesText is how the endpoints of a service are checked, with all that it leaves to the defaults.
func rulesText(k *api.CheckRules) string {
	text := fmt.Sprintf("%s every %s, %s while confirming a change, timeout %s, rise %d, fall %d", k.Type, k.Interval, k.FastInterval, k.Timeout, k.Rise, k.Fall)
	if k.From == balancer.HealthFromFleet {
		text += ", by the fleet"
	}
	if k.PanicThreshold > 0 {
		text += fmt.Sprintf(", panic below %d%%", k.PanicThreshold)
	}
	return text
}

// withoutSecrets is a health check as defined, without the values of headers that are secret.
func withoutSecrets(field string, value any) any {
	check, ok := value.(map[string]any)
	headers, there := check["headers"].(map[string]any)
	if field != "health" || !ok || !there {
		return value
	}
	check, headers = maps.Clone(check), maps.Clone(headers)
	for name := range headers {
		if probe.Secret(name) {
			headers[name] = hidden
		}
	}
	check["headers"] = headers
	return check
}

// health writes the lines of status on health.
func (out *sheet) health(h *api.HealthCount) {
	if h.Checked == 0 {
		return
	}
	text := wording.Count(h.Checked, "endpoint") + " checked"
	if h.Endpoints != 0 && h.Endpoints != h.Checked {
		text = fmt.Sprintf("%s of %s", wording.Count(h.Checked, "check"), wording.Count(h.Endpoints, "endpoint"))
	}
	style := table.Plain
	if h.Down == 0 && h.Unknown == 0 {
		text += ", all up"
	} else {
		text += fmt.Sprintf(", %d down", h.Down)
	}
	if h.Down > 0 {
		style = table.Notice
	}
	if len(h.Out) > 0 {
		style = table.Bad
	}
	if h.Unknown > 0 {
		text += fmt.Sprintf(", %d unknown", h.Unknown)
	}
	if h.Unable > 0 {
		text += fmt.Sprintf("; %d can't be checked from here", h.Unable)
	}
	out.painted("health", text, style)
	out.services("up: ", "; ", style, cli.Mapped(h.Services, func(s api.ServiceHealth) string { return string(s.Service) + " " + s.Ports.Text("/") }))
	out.services("no endpoint is left for clients of ", ", ", table.Bad, cli.Mapped(slices.Sorted(slices.Values(h.Out)), func(n balancer.Name) string { return outText(h, n) }))
	out.services("in panic mode, all endpoints are used, healthy or not: ", ", ", table.Bad,
		cli.Mapped(slices.Sorted(slices.Values(h.Panic)), func(n balancer.Name) string { return string(n) }))
}

// servicesNamed is how many services a line of status names, unless it is asked for all.
const servicesNamed = 10

// services writes a text about each of some services after what they have in common.
func (out *sheet) services(what, sep string, style table.Style, texts []string) {
	if len(texts) == 0 {
		return
	}
	if more := len(texts) - servicesNamed; more > 0 && out.Format != cli.FormWide {
		texts = append(texts[:servicesNamed], fmt.Sprintf("and %d more: vipctl status -o wide", more))
	}
	out.painted("", what+strings.Join(texts, sep), style)
}

// outText names a service that is out, with its ports without a healthy endpoint if others have some.
func outText(h *api.HealthCount, name balancer.Name) string {
	var dead []string
	for _, s := range h.Services {
		if s.Service != name || s.Ports.None() {
			continue
		}
		for _, p := range s.Ports {
			if p.Up == 0 {
				dead = append(dead, p.Port)
			}
		}
	}
	if len(dead) == 0 {
		return string(name)
	}
	return fmt.Sprintf("%s at %s", name, wording.List(dead, "and"))
}
