package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
)

// health is the verdict on an endpoint, and for how long it has stood: "down 3m12s".
func (c *call) health(e *api.Endpoint) string {
	return strings.TrimSpace(string(e.Health) + " " + c.since(e))
}

// healthStyle is the style of that.
func healthStyle(text string) table.Style {
	verdict, _, _ := strings.Cut(text, " ")
	return stateStyle(verdict)
}

// since is for how long the endpoint has been up or down.
func (c *call) since(e *api.Endpoint) string {
	if e.Check == nil || e.Check.Since.IsZero() {
		return ""
	}
	return roughly(c.now().Sub(e.Check.Since))
}

// why says what is wrong with an endpoint, or on its way; "" where nothing is.
func why(e *api.Endpoint) string {
	var all []string
	if k := e.Check; k != nil {
		switch {
		case k.LastOutcome == "":
			all = append(all, "not checked yet")
		case k.LastOutcome == string(health.NotRun):
			all = append(all, k.LastText)
		case k.Against > 0:
			all = append(all, fmt.Sprintf("%s %d of %d: %s", k.LastOutcome, k.Against, k.Needed, k.LastText))
		case e.Health == balancer.HealthDown:
			all = append(all, k.LastText)
		}
	}
	return strings.Join(append(all, besides(e)...), "; ")
}

// besides says what there is to know of an endpoint's health besides what its check has seen.
func besides(e *api.Endpoint) (all []string) {
	if k := e.Check; k != nil && k.Fleet != nil && k.Fleet.Alone {
		all = append(all, "checked by this node alone")
	}
	if x := e.Ejection; x != nil {
		all = append(all, fmt.Sprintf("connects fail: %s; ejected until %s at the latest", x.Cause, x.Until.Local().Format(time.TimeOnly)))
	}
	if e.Cut {
		all = append(all, "its connections were cut")
	}
	if e.Ramp > 0 {
		all = append(all, fmt.Sprintf("starts slowly, at %d%% of its weight", e.Ramp))
	}
	return all
}

// nextCheck says when the endpoint is checked next.
func (c *call) nextCheck(k *api.Check) string {
	switch {
	case k == nil:
		return ""
	case k.Checking:
		return "now"
	case k.Next.IsZero(): // while it is watched
		return ""
	}
	return c.ahead(k.Next)
}

// lastResult is what the latest check has seen, and how long ago.
func (c *call) lastResult(k *api.Check) string {
	if k == nil || k.LastOutcome == "" {
		return ""
	}
	if k.Last.IsZero() { // while it is watched
		return k.LastText
	}
	return k.LastText + ", " + c.ago(k.Last)
}

// describedChecks is the health of a service's endpoints, of those where there is something to say.
func (c *call) describedChecks(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "HEALTH", Style: stateStyle},
		table.Column{Title: "SINCE", Right: true}, table.Column{Title: "NEXT"}, table.Column{Title: "LAST RESULT"})
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		all, verdict := besides(e), string(e.Health)
		if k := e.Check; k != nil {
			last := c.lastResult(k)
			if k.Against > 0 {
				last = fmt.Sprintf("%s (%s %d of %d)", last, k.LastOutcome, k.Against, k.Needed)
			}
			if last != "" {
				all = append([]string{last}, all...)
			}
			verdict = cmp.Or(verdict, "unknown")
		} else if len(all) == 0 {
			continue
		}
		t.Row(e.Address, verdict, c.since(e), c.nextCheck(e.Check), strings.Join(all, "; "))
	}
	return t
}

// healthText is the line of status on health.
func (c *call) healthText(out *sheet, h *api.HealthCount) {
	switch {
	case h.Checked == 0:
		return
	case h.Down == 0 && h.Unknown == 0:
		out.text("health", fmt.Sprintf("%s checked, all up", count(h.Checked, "endpoint")))
	default:
		text := fmt.Sprintf("%s checked, %d down", count(h.Checked, "endpoint"), h.Down)
		if h.Unknown > 0 {
			text += fmt.Sprintf(", %d unknown", h.Unknown)
		}
		out.line("health", c.paint(text, downStyle(h.Down)))
	}
	c.namedServices(out, "no endpoint is left for clients of ", h.Out)
	c.namedServices(out, "in panic, so that all endpoints are used, healthy or not: ", h.Panic)
}

// servicesNamed is how many services a line of status names, unless it is asked for all.
const servicesNamed = 10

// namedServices writes what is the matter with some services, loudly.
func (c *call) namedServices(out *sheet, what string, of []balancer.Name) {
	if len(of) == 0 {
		return
	}
	var names []string
	for _, n := range slices.Sorted(slices.Values(of)) {
		names = append(names, string(n))
	}
	if more := len(names) - servicesNamed; more > 0 && c.format != formWide {
		names = append(names[:servicesNamed], fmt.Sprintf("and %d more: vipctl status -o wide", more))
	}
	for _, line := range table.Wrap(what+strings.Join(names, ", "), lineWidth-out.label) {
		out.line("", c.paint(line, table.Bad))
	}
}

func downStyle(down int) table.Style {
	if down > 0 {
		return table.Bad
	}
	return table.Plain
}
