package doctor

import (
	"slices"

	"vipd/balancer"
	"vipd/cmd/internal/wording"
)

// Level is a finding's severity.
type Level string

// These are the levels, in order of severity.
const (
	// OK means that nothing needs to be done.
	OK Level = "ok"
	// Note is information that rarely needs action.
	Note Level = "note"
	// Warning means that something may fail, or that some traffic may be lost.
	Warning Level = "warning"
	// Problem means that a part of the configuration can't work.
	Problem Level = "problem"
)

// Finding is one of a check's observations.
type Finding struct {
	Level Level `json:"level"`
	// Check is the check's name, such as "sysctls".
	Check string `json:"check"`
	// What is the observation, as a sentence without a full stop.
	What string `json:"what"`
	// Why explains why the observation matters. It is "" if that is obvious.
	Why string `json:"why,omitempty"`
	// Fix is a command that fixes the cause or shows more about it. It is "" if no action is
	// needed.
	Fix string `json:"mend,omitempty"`
}

func fine(what string) Finding { return Finding{Level: OK, What: what} }
func note(what, why, fix string) Finding {
	return Finding{Level: Note, What: what, Why: why, Fix: fix}
}
func warning(what, why, fix string) Finding {
	return Finding{Level: Warning, What: what, Why: why, Fix: fix}
}
func problem(what, why, fix string) Finding {
	return Finding{Level: Problem, What: what, Why: why, Fix: fix}
}

// Problem converts the finding to a problem in the daemon's status.
func (f Finding) Problem() balancer.Problem {
	p := balancer.Problem{Severity: balancer.SeverityWarning, Text: f.What}
	if f.Level == Problem {
		p.Severity = balancer.SeverityError
	}
	if f.Why != "" {
		p.Text += "; " + f.Why
	}
	if f.Fix != "" {
		p.Text += ": " + f.Fix
	}
	return p
}

// orFine returns found. If found is empty, it returns a finding of level OK with the text what
// instead.
func orFine(found []Finding, what string) []Finding {
	if len(found) == 0 {
		return []Finding{fine(what)}
	}
	return found
}

// grave removes all findings except warnings and problems.
func grave(found []Finding) []Finding {
	return slices.DeleteFunc(found, func(f Finding) bool { return f.Level != Warning && f.Level != Problem })
}

// list formats the first five elements of a list, and counts the remaining elements.
func list(all []string) string { return wording.Some(all, 5) }
