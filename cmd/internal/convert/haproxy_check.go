package convert

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// checkRules holds a backend's check settings that are not fields of the health table.
type checkRules struct {
	kind  statement
	times timing
	// port is the port of "connect", or 0 if the rules set none.
	port checkPort
	// tls reports whether checks use TLS.
	tls bool
	// sent reports whether a step sets the request. If so, the request in "option httpchk" has no
	// effect.
	sent bool
	// steps holds the fields of a tcp-check's exchanges.
	steps [][]setting
}

// once sets a field of the health table. If an earlier line sets a different value, it only adds a
// note.
func (p *proxy) once(line int, name string, value any) {
	if s := find(p.health, name); s == nil {
		p.check(line, name, value)
	} else if fmt.Sprint(s.value) != fmt.Sprint(value) {
		p.note(line, "a check has one %s; the %[1]s on line %d is used", name, s.line)
	}
}

// checkOption reads the option that chooses the kind of check.
func (p *proxy) checkOption(s *statement) {
	p.checks.kind = *s
	if !p.checks.sent {
		p.uncheck("method", "path", "host") // remove values that were inherited from defaults
	}
	switch s.word(1) {
	case "httpchk":
		p.checkRequest(s)
	case "smtpchk":
		p.once(s.line, "expect", "220")
	case "redis-check":
		p.once(s.line, "send", "PING\r\n")
		p.once(s.line, "expect", "+PONG")
	default:
		p.answer(s.line, "check", s.word(1))
	}
}

// checkRequest reads "option httpchk METHOD PATH VERSION", unless a step sets the request.
func (p *proxy) checkRequest(s *statement) {
	words := s.rest(2)
	if p.checks.sent || len(words) == 0 {
		return
	}
	if len(words) == 1 {
		p.once(s.line, "path", words[0])
		return
	}
	p.once(s.line, "method", words[0])
	p.once(s.line, "path", words[1])
	p.checkHeaders(s.line, strings.Join(words[2:], " "))
}

// checkHeaders reads the HTTP version and the headers, which follow the path of a check.
func (p *proxy) checkHeaders(line int, text string) {
	headers := map[string]any{}
	for part := range strings.SplitSeq(text, "\r\n") {
		name, value, isHeader := strings.Cut(part, ":")
		switch name = strings.TrimSpace(name); {
		case !isHeader:
			continue // the version, or an empty line at the end
		case strings.EqualFold(name, "Host"):
			p.once(line, "host", strings.TrimSpace(value))
		default:
			headers[name] = strings.TrimSpace(value)
		}
	}
	if len(headers) > 0 {
		p.check(line, "headers", headers)
	}
}

// uncheck removes fields from the health table.
func (p *proxy) uncheck(names ...string) {
	p.health = slices.DeleteFunc(p.health, func(s setting) bool { return slices.Contains(names, s.name) })
}

// step sets a field from a step in an HTTP check. vipd supports only one step of each kind, so a
// second step only results in a note.
func (p *proxy) step(line int, name, value string) {
	if first := find(p.health, name); first != nil && first.value != value {
		p.note(line, "an HTTP check has one request and one expected answer (line %d); the nearest equivalent is a check of type exec that does all steps", first.line)
		return
	}
	p.once(line, name, value)
}

// checkRule converts an http-check or tcp-check line.
func (p *proxy) checkRule(s *statement) {
	switch {
	case s.is("http-check", "send"):
		p.checkSend(s)
	case s.is("http-check", "expect"), s.is("tcp-check", "expect"):
		p.checkExpect(s)
	case s.is("tcp-check", "send"):
		p.exchange(s.line, "send", s.word(2))
	case s.is("tcp-check", "send-binary"):
		p.exchange(s.line, "send_hex", s.word(2))
	case s.is("tcp-check", "connect"), s.is("http-check", "connect"):
		for i, word := range s.words {
			if word == "port" {
				port, err := parsePort(s.word(i + 1))
				if err != nil {
					p.note(s.line, "left out: %v", err)
				}
				p.checks.port = checkPort{port: port, line: s.line}
			}
			p.checks.tls = p.checks.tls || word == "ssl"
		}
	case s.is("http-check", "disable-on-404"):
		p.note(s.line, "the nearest command is \"vipctl drain\"")
	case s.is("tcp-check", "comment"), s.is("http-check", "comment"):
		return // a comment has no effect
	default:
		p.note(s.line, nearExpect)
	}
}

const nearExpect = "the nearest settings are status, and expect, text that the answer must contain"

// checkExpect converts the answer that a check expects.
func (p *proxy) checkExpect(s *statement) {
	words := s.rest(2)
	for len(words) > 1 && slices.Contains([]string{"min-recv", "comment", "ok-status", "error-status", "tout-status", "on-success", "on-error", "status-code"}, words[0]) {
		words = words[2:]
	}
	negated := len(words) > 0 && words[0] == "!"
	if negated {
		words = words[1:]
	}
	if len(words) < 2 {
		p.note(s.line, nearExpect)
		return
	}
	kind, value := words[0], strings.Join(words[1:], " ")
	if s.is("tcp-check") {
		p.expectStep(s.line, kind, value, negated)
		return
	}
	switch {
	case kind == "string" && !negated:
		p.step(s.line, "expect", value)
	case kind == "status" && !negated:
		p.step(s.line, "status", strings.ReplaceAll(value, " ", ","))
	case kind == "status" || kind == "rstatus":
		status, ok := statusOf(kind, value, negated)
		if !ok {
			p.note(s.line, nearExpect)
			return
		}
		p.step(s.line, "status", status)
	default:
		p.note(s.line, nearExpect)
	}
}

// statusOf converts a list or a pattern of status codes to vipd's syntax, and reports whether this
// is possible. If negated is true, the result holds the status codes that do not match.
func statusOf(kind, value string, negated bool) (string, bool) {
	var matches func(code int) bool
	if kind == "rstatus" {
		pattern, err := regexp.Compile(value)
		if err != nil {
			return "", false
		}
		matches = func(code int) bool { return pattern.MatchString(strconv.Itoa(code)) }
	} else {
		codes := map[int]bool{}
		for _, part := range strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ',' }) {
			low, high, isRange := strings.Cut(part, "-")
			first, last := number(low), number(low)
			if isRange {
				last = number(high)
			}
			if first < 100 || last > 599 {
				return "", false
			}
			for code := first; code <= last; code++ {
				codes[int(code)] = true
			}
		}
		matches = func(code int) bool { return codes[code] }
	}
	var out []string
	for code := 100; code <= 599; code++ {
		if matches(code) == negated {
			continue
		}
		last := code
		for last < 599 && matches(last+1) != negated {
			last++
		}
		text := strconv.Itoa(code)
		if last > code {
			text += "-" + strconv.Itoa(last)
		}
		out, code = append(out, text), last
	}
	return strings.Join(out, ","), len(out) > 0
}

// checkSend converts "http-check send meth M uri U hdr Name Value".
func (p *proxy) checkSend(s *statement) {
	headers := map[string]any{}
	p.checks.sent = true
	p.uncheck("method", "path", "host", "headers")
	for i := 2; i < len(s.words); i++ {
		switch value := s.word(i + 1); s.words[i] {
		case "meth":
			p.once(s.line, "method", value)
		case "uri":
			p.once(s.line, "path", value)
		case "hdr":
			if strings.EqualFold(value, "Host") {
				p.once(s.line, "host", s.word(i+2))
			} else {
				headers[value] = s.word(i + 2)
			}
			i++
		case "ver":
			i++ // vipd speaks HTTP/1.1
			continue
		default:
			p.note(s.line, "%s: "+noEquivalent, s.words[i])
		}
		i++
	}
	if len(headers) > 0 {
		p.check(s.line, "headers", headers)
	}
}
