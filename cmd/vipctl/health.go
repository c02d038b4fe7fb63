package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

// verdict returns an endpoint's health and how long it has been in that state, such as "down
// 3m12s".
func verdict(p *cli.Printer, e *api.Endpoint) string {
	return strings.TrimSpace(string(e.Health) + " " + since(p, e))
}

// since returns how long the endpoint has been up or down.
func since(p *cli.Printer, e *api.Endpoint) string {
	if e.Check == nil {
		return ""
	}
	return elapsed(p, e.Check.Since)
}

// why returns the latest result of an endpoint's check, and all other reasons that affect the
// endpoint's use.
func why(p *cli.Printer, e *api.Endpoint) string {
	return strings.Join(slices.Concat(checkNotes(p, e), useNotes(p, e)), "; ")
}

// checkNotes returns notes about the last result of an endpoint's check, or the reason why there is
// none.
func checkNotes(p *cli.Printer, e *api.Endpoint) (notes []string) {
	k := e.Check
	if k == nil {
		if e.Unchecked != "" {
			notes = append(notes, "not checked: "+e.Unchecked)
		}
		return notes
	}
	last := lastResult(p, k)
	if k.Against > 0 {
		last += fmt.Sprintf(" (%s %d of %d)", k.LastOutcome, k.Against, k.Needed)
	}
	notes = append(notes, cmp.Or(last, "not checked yet"))
	if k.Fleet != nil && k.Fleet.Here != "" {
		notes = append(notes, k.Fleet.Here)
	}
	return notes
}

// useNotes returns notes about everything that affects an endpoint's use, except its check.
func useNotes(p *cli.Printer, e *api.Endpoint) (notes []string) {
	if k := e.Check; k != nil && k.Fleet != nil && k.Fleet.Alone {
		notes = append(notes, "checked only by this node")
	}
	switch o := e.Override; {
	case e.State == balancer.Removed:
		notes = append(notes, "removed from its service")
	case e.State == balancer.Draining && (o == nil || o.Draining == nil) && (e.Agent == nil || e.Agent.State != balancer.AgentDrained):
		notes = append(notes, "drained by its definition")
	}
	if e.Override != nil {
		notes = append(notes, override(p, e.Override))
	}
	if e.Agent != nil {
		notes = append(notes, "its agent: "+cli.OneLine(e.Agent.Text))
	}
	if x := e.Ejection; x != nil {
		notes = append(notes, fmt.Sprintf("connections fail: %s; ejected until %s at the latest", x.Cause, x.Until.Local().Format(time.TimeOnly)))
	}
	if e.Health == balancer.HealthDown && e.State == balancer.Active {
		notes = append(notes, "used: panic")
	}
	if e.Cut {
		notes = append(notes, "its connections were cut")
	}
	if e.Ramp > 0 {
		notes = append(notes, fmt.Sprintf("ramping up: %d%% of its weight", e.Ramp))
	}
	return notes
}

// weights formats endpoints' weights. During a slow start, or if an agent reduces a weight, the
// weights in use are scaled up, so a fraction of a small weight is still an integer. The text then
// shows the configured weight and the fraction, such as "10 at 20%".
func weights(endpoints []api.Endpoint) []string {
	type port struct {
		service balancer.Name
		name    string
	}
	scaled := map[port]bool{}
	for i := range endpoints {
		if e := &endpoints[i]; weightPercent(e) < 100 {
			scaled[port{e.Service, e.Port}] = true
		}
	}
	all := make([]string, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		weight := e.Weight
		if scaled[port{e.Service, e.Port}] && e.State == balancer.Active {
			weight, _ = e.Override.Effective(e.Configured, false)
		}
		all[i] = strconv.Itoa(weight)
		if percent := weightPercent(e); percent < 100 {
			all[i] += fmt.Sprintf(" at %d%%", percent)
		}
	}
	return all
}

// weightPercent returns the percentage of its weight that an active endpoint currently gets, which
// a slow start or its agent can reduce. A weight override has priority over the agent.
func weightPercent(e *api.Endpoint) int {
	percent := 100
	if e.State != balancer.Active {
		return percent
	}
	if e.Agent != nil && (e.Override == nil || e.Override.Weight == nil) {
		percent = e.Agent.Percent
	}
	if e.Ramp > 0 {
		percent = percent * e.Ramp / 100
	}
	return percent
}

func nextCheck(p *cli.Printer, k *api.Check) string {
	switch {
	case k == nil:
		return ""
	case k.Checking:
		return "now"
	case k.Next.IsZero(): // the endpoint's connections are watched, not probed
		return ""
	}
	return ahead(p, k.Next)
}

// lastResult describes the latest result, and its age.
func lastResult(p *cli.Printer, k *api.Check) string {
	if k == nil || k.LastOutcome == "" {
		return ""
	}
	if k.Last.IsZero() { // the endpoint's connections are watched, not probed
		return k.LastText
	}
	return k.LastText + ", " + ago(p, k.Last)
}

// describedChecks lists the health of a service's endpoints. It omits endpoints without a check if
// they also have no agent, ejection or slow start.
func describedChecks(p *cli.Printer, s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "PORT", Skip: len(s.Ports) < 2}, table.Column{Title: "HEALTH", Style: stateStyle},
		table.Column{Title: "SINCE", Right: true}, table.Column{Title: "NEXT"}, table.Column{Title: "WHY"})
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Check == nil && e.Unchecked == "" && e.Ejection == nil && e.Agent == nil && e.Ramp == 0 {
			continue
		}
		verdict := string(e.Health)
		if e.Check != nil {
			verdict = cmp.Or(verdict, "unknown")
		}
		t.Row(e.Place(), e.Port, verdict, since(p, e), nextCheck(p, e.Check), why(p, e))
	}
	return t
}

// rulesText describes how a service's endpoints are checked, including defaults.
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
	out.services("up: ", "; ", style, lists.Mapped(h.Services, func(s api.ServiceHealth) string { return string(s.Service) + " " + s.Ports.Text("/") }))
	out.services("no endpoint is left for clients of ", ", ", table.Bad, lists.Mapped(slices.Sorted(slices.Values(h.Out)), func(n balancer.Name) string { return outText(h, n) }))
	out.services("in panic mode, all endpoints are used, healthy or not: ", ", ", table.Bad,
		lists.Mapped(slices.Sorted(slices.Values(h.Panic)), func(n balancer.Name) string { return string(n) }))
}

// servicesNamed is the default maximum number of services in a line.
const servicesNamed = 10

// services writes the label what, and a list of services that texts describe. Except in the wide
// form, it shortens a long list.
func (out *sheet) services(what, sep string, style table.Style, texts []string) {
	if len(texts) == 0 {
		return
	}
	if more := len(texts) - servicesNamed; more > 0 && out.Format != cli.FormWide {
		texts = append(texts[:servicesNamed], fmt.Sprintf("and %d more: vipctl status -o wide", more))
	}
	out.painted("", what+strings.Join(texts, sep), style)
}

// outText names a service without usable endpoints. If only some of its ports have no usable
// endpoints, it also names these ports.
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
