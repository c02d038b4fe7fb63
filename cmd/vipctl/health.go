package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/table"
)

// isChecked reports whether an endpoint has a health check here.
func isChecked(e api.Endpoint) bool { return e.Check != nil }

// isEjected reports whether an endpoint gets no connections because connects to it fail.
func isEjected(e api.Endpoint) bool { return e.Ejection != nil }

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
		if alone(k) {
			all = append(all, "checked by this node alone")
		}
	}
	if x := e.Ejection; x != nil {
		all = append(all, fmt.Sprintf("connects fail: %s; ejected until %s at the latest", x.Cause, x.Until.Local().Format(time.TimeOnly)))
	}
	if e.Cut {
		all = append(all, "its connections were cut")
	}
	if e.Ramp > 0 {
		all = append(all, fmt.Sprintf("starts slowly, at %d%%", e.Ramp))
	}
	return strings.Join(all, "; ")
}

// alone reports whether this node goes by its own checks, though the fleet is to check together.
func alone(k *api.Check) bool { return k.Fleet != nil && k.Fleet.Alone }

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

// describedChecks is the health of a service's endpoints; it has no rows where none is checked.
func (c *call) describedChecks(s *api.Service) *table.Table {
	t := table.New(table.Column{Title: "ADDRESS"}, table.Column{Title: "HEALTH", Style: stateStyle},
		table.Column{Title: "SINCE", Right: true}, table.Column{Title: "NEXT"}, table.Column{Title: "LAST RESULT"})
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Check == nil {
			continue
		}
		last := c.lastResult(e.Check)
		if e.Check.Against > 0 {
			last = fmt.Sprintf("%s (%s %d of %d)", last, e.Check.LastOutcome, e.Check.Against, e.Check.Needed)
		}
		if alone(e.Check) {
			last += "; checked by this node alone"
		}
		if e.Cut {
			last += "; its connections were cut"
		}
		if e.Ramp > 0 {
			last += fmt.Sprintf("; starts slowly, at %d%% of its weight", e.Ramp)
		}
		verdict := string(e.Health)
		if verdict == "" {
			verdict = "unknown"
		}
		t.Row(e.Address, verdict, c.since(e), c.nextCheck(e.Check), last)
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
	if len(h.Panic) > 0 {
		var names []string
		for _, n := range slices.Sorted(slices.Values(h.Panic)) {
			names = append(names, string(n))
		}
		text := "in panic, so that all endpoints are used, healthy or not: " + strings.Join(names, ", ")
		for _, line := range table.Wrap(text, lineWidth-out.label) {
			out.line("", c.paint(line, table.Bad))
		}
	}
}

func downStyle(down int) table.Style {
	if down > 0 {
		return table.Bad
	}
	return table.Plain
}
