package main

import (
	"fmt"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/rates"
	"vipd/cmd/internal/table"
)

// roughly formats a duration in at most two units, such as 3m12s or 2d4h.
func roughly(d time.Duration) string {
	d = d.Abs()
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return pair(d, time.Minute, "m", time.Second, "s")
	case d < 24*time.Hour:
		return pair(d, time.Hour, "h", time.Minute, "m")
	}
	return pair(d, 24*time.Hour, "d", time.Hour, "h")
}

func pair(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/big, bigName)
	if rest := d % big / small; rest > 0 && d/big < 10 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}

// elapsed returns how long ago t was, or "" if t is zero.
func elapsed(p *cli.Printer, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return roughly(p.Now().Sub(t))
}

func ago(p *cli.Printer, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return roughly(p.Now().Sub(t)) + " ago"
}

func ahead(p *cli.Printer, t time.Time) string {
	if d := t.Sub(p.Now()); d >= time.Second {
		return "in " + roughly(d)
	}
	return "now"
}

// when returns how far t is in the future or in the past.
func when(p *cli.Printer, t time.Time) string {
	if t.After(p.Now()) {
		return ahead(p, t)
	}
	return ago(p, t)
}

// transferred formats the byte counts in both directions. Both texts are empty if both counts are
// zero, for example because bytes are not counted.
func transferred(in, out uint64) (inText, outText string) {
	if in+out == 0 {
		return "", ""
	}
	return rates.Bytes(in), rates.Bytes(out)
}

// stateStyle returns the style for a state or a verdict. It ignores any text after the first word.
func stateStyle(text string) table.Style {
	switch text, _, _ = strings.Cut(text, " "); text {
	case string(balancer.Active), "applied", string(balancer.HealthUp):
		return table.Good
	case string(balancer.Draining), string(balancer.ZeroWeight), string(balancer.Removed), string(balancer.Ejected), string(balancer.Insufficient), "pending", "unknown":
		return table.Notice
	case string(balancer.Down), "failing", "missing", "extra", "differs":
		return table.Bad
	}
	return table.Plain
}

// problemLine formats a problem as one line, and marks a warning.
func problemLine(p *balancer.Problem) string {
	text := cli.OneLine(p.String())
	if p.Severity == balancer.SeverityWarning {
		text += " (a warning)"
	}
	return text
}

func severityStyle(s balancer.Severity) table.Style {
	if s == balancer.SeverityWarning || s == balancer.SeverityNearest {
		return table.Notice
	}
	return table.Bad
}

// override describes a manual override.
func override(p *cli.Printer, o *balancer.Override) string {
	if o == nil {
		return ""
	}
	text := ""
	weighed, drained := o.Signatures()
	lapses := func(before string, at time.Time, after string) {
		if !at.IsZero() {
			text += before + "lapses " + ahead(p, at) + after
		}
	}
	if o.Weight != nil {
		text = fmt.Sprintf("weight %d", *o.Weight)
		lapses(" (", o.WeightExpires, ")")
		if o.Draining != nil && weighed != drained {
			text += signatureText(weighed)
		}
	}
	if o.Draining != nil {
		if text != "" {
			text += ", "
		}
		if *o.Draining {
			text += "draining"
		} else {
			text += "not draining"
		}
		lapses(" (", o.DrainingExpires, ")")
	}
	if !o.Until.IsZero() {
		text += ", deadline " + when(p, o.Until)
	}
	lapses(", ", o.Expires, "")
	if o.Draining == nil {
		drained = weighed
	}
	return text + signatureText(drained)
}

func signatureText(s balancer.Signature) (text string) {
	if s.By != "" {
		text = ", by " + s.By
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}
