package convert

import (
	"fmt"
	"slices"
	"strings"
)

// section is a section in HAProxy's configuration.
type section struct {
	kind, name string
	line       int
	statements []*statement
	// base is the defaults section that applies to the section, or nil.
	base *section
}

// all returns the statements that apply to a section, starting with inherited statements. Check
// steps are inherited only if the section has none. It omits statements that later statements
// replace or disable.
func (s *section) all() []*statement {
	chain := []*section{s}
	for base := s.base; base != nil; base = base.base {
		chain = append(chain, base)
	}
	parts := make([][]*statement, len(chain))
	ownSteps := false
	for i, each := range chain {
		part := each.statements
		hasSteps := slices.ContainsFunc(part, isCheckStep)
		if ownSteps && hasSteps {
			part = slices.DeleteFunc(slices.Clone(part), isCheckStep)
		}
		ownSteps = ownSteps || hasSteps
		parts[len(chain)-1-i] = part
	}
	return effective(slices.Concat(parts...))
}

func isCheckStep(s *statement) bool { return s.is("http-check") || s.is("tcp-check") }

// effective returns the statements that no later statement replaces or disables.
func effective(all []*statement) []*statement {
	last := map[string]*statement{}
	for _, s := range all {
		last[settingOf(s)] = s
	}
	return slices.DeleteFunc(all, func(s *statement) bool {
		key := settingOf(s)
		return key != "" && (last[key] != s || s.is("no"))
	})
}

// settingOf returns the name of the setting that a statement replaces, or "" if statements of its
// kind accumulate.
func settingOf(s *statement) string {
	words := s.words
	if s.is("no") {
		words = s.words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	second := ""
	if len(words) > 1 {
		second = words[1]
	}
	switch words[0] {
	case "mode", "balance", "hash-type", "retries", "maxconn", "fullconn", "source", "default_backend", "log-format":
		return words[0]
	case "timeout":
		return "timeout " + second
	case "option":
		if isCheckOption(second) {
			return "option check"
		}
		return "option " + second
	}
	return ""
}

// isCheckOption reports whether an option chooses the kind of check.
func isCheckOption(name string) bool {
	return strings.HasSuffix(name, "chk") || strings.HasSuffix(name, "-check")
}

// disabled reports whether the statements disable their section.
func disabled(all []*statement) (is bool) {
	for _, one := range all {
		is = one.is("disabled") || is && !one.is("enabled")
	}
	return is
}

// haproxyParser divides a configuration into sections.
type haproxyParser struct {
	*haproxy
	named             map[string]*section
	current, defaults *section
	// conditions holds the lines of the open conditions.
	conditions []int
}

// read parses a line.
func (p *haproxyParser) read(line int) {
	words, doubt := p.words(line)
	if len(words) == 0 {
		return
	}
	if strings.HasPrefix(words[0], ".") {
		p.directive(line, words[0])
		return
	}
	if n := len(p.conditions); n > 0 {
		doubt = fmt.Sprintf("the condition on line %d decides whether this line applies: keep only the lines of one branch", p.conditions[n-1])
	}
	if isSection(words[0]) {
		p.section(line, words, doubt)
		return
	}
	if p.current == nil {
		p.note(line, "left out: %q is outside of a section such as frontend or backend", plain(words[0]))
		return
	}
	if old, isOld := map[string][]string{
		"clitimeout": {"timeout", "client"}, "srvtimeout": {"timeout", "server"}, "contimeout": {"timeout", "connect"}, "redispatch": {"option", "redispatch"},
	}[words[0]]; isOld {
		words = append(old, words[1:]...)
	}
	p.current.statements = append(p.current.statements, &statement{words: words, line: line, doubt: doubt})
}

func isSection(word string) bool {
	return slices.Contains([]string{
		"global", "defaults", "frontend", "backend", "listen", "peers", "resolvers", "userlist", "program", "cache", "mailers",
		"http-errors", "ring", "log-forward", "log-profile", "fcgi-app", "crt-store", "traces", "acme",
	}, word)
}

// directive handles a conditional directive such as .if. It ignores other directives, which only
// print messages.
func (p *haproxyParser) directive(line int, word string) {
	n := len(p.conditions)
	switch word {
	case ".if":
		p.conditions = append(p.conditions, line)
	case ".endif":
		p.conditions = p.conditions[:max(0, n-1)]
	}
}

// section starts a section. It omits a frontend, backend or listen section without a name.
func (p *haproxyParser) section(line int, words []string, doubt string) {
	s := &section{kind: words[0], line: line}
	p.current = s
	if len(words) > 1 {
		s.name = words[1]
	}
	from := p.defaults
	if at := slices.Index(words, "from"); at > 0 && at+1 < len(words) {
		if from = p.named[words[at+1]]; from == nil {
			doubt = fmt.Sprintf("there is no section \"defaults %s\" above this line: convert a file that has it", plain(words[at+1]))
		}
	}
	if doubt != "" {
		s.statements = append(s.statements, &statement{words: []string{"id"}, line: line, doubt: doubt})
	}
	switch s.kind {
	case "defaults":
		if slices.Contains(words, "from") && from != nil {
			s.base = from
		}
		p.defaults, p.named[s.name] = s, s
	case "frontend", "backend", "listen":
		if s.name == "" {
			p.note(line, "left out: a %s needs a name", s.kind)
			return
		}
		if len(words) > 2 && words[2] != "from" { // before HAProxy 1.5, the address followed the name
			s.statements = append(s.statements, &statement{words: append([]string{"bind"}, words[2:]...), line: line})
		}
		if from != nil {
			s.base = from
		}
	}
	p.sections = append(p.sections, s)
}

// words splits a line into words. If a closing quote is missing, it returns a doubt.
func (h *haproxy) words(line int) (words []string, doubt string) {
	words, open := splitWords(h.lines[line-1], map[rune]rune{'n': '\n', 'r': '\r', 't': '\t'}, "#")
	if open {
		doubt = "the quotes that open on this line are not closed"
		h.note(line, "%s", doubt)
	}
	return words, doubt
}
