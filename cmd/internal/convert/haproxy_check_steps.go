package convert

import (
	"slices"
	"strings"

	"vipd/balancer"
)

// exchange adds a field to a tcp-check's steps. An expected answer is added to the last step that
// sends, unless that step already has an answer.
func (p *proxy) exchange(line int, name, value string) {
	all, one := p.checks.steps, setting{name: name, value: value, line: line}
	last := len(all) - 1
	if !strings.HasPrefix(name, "expect") || last < 0 || slices.ContainsFunc(all[last], func(s setting) bool { return strings.HasPrefix(s.name, "expect") }) {
		p.checks.steps = append(all, []setting{one})
		return
	}
	all[last] = append(all[last], one)
}

// expectStep adds an expected answer to a tcp-check. If vipd can't check for this answer, it adds a
// note instead.
func (p *proxy) expectStep(line int, kind, value string, negated bool) {
	field := map[string]string{"string": "expect", "binary": "expect_hex", "rstring": "expect_regexp"}[kind]
	if field == "" || negated {
		p.note(line, "the nearest equivalent is a step with expect, expect_hex or expect_regexp")
		return
	}
	if field == "expect_regexp" {
		if _, err := (&balancer.HealthStep{ExpectRegexp: value}).Pattern(); err != nil {
			p.note(line, "the pattern %v", err)
			return
		}
	}
	p.exchange(line, field, value)
}

// finishSteps writes a tcp-check's steps. A single step that sends and expects text needs no list.
func (p *proxy) finishSteps() {
	steps := p.checks.steps
	if len(steps) == 0 {
		return
	}
	isText := func(s setting) bool { return s.name == "send" || s.name == "expect" }
	if len(steps) == 1 && !slices.ContainsFunc(steps[0], func(s setting) bool { return !isText(s) }) {
		for _, s := range steps[0] {
			p.once(s.line, s.name, s.value)
		}
		return
	}
	var list []any
	for _, fields := range steps {
		step := map[string]any{}
		for _, s := range fields {
			step[s.name] = s.value
		}
		list = append(list, step)
	}
	p.check(steps[0][0].line, "steps", list)
}
