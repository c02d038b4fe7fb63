package convert

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// checkRules are what a backend says of its checks, beside the fields of the health table.
type checkRules struct {
	kind  statement
	times timing
	// tls: checks speak TLS.
	tls bool
	// sent: a step says what is sent, whatever the option says.
	sent bool
	// cut is the line that ends connections of failed servers; 0 means none does.
	cut int
}

// once sets a field of the health table; what is there already differs from server to server, and stays.
func (p *proxy) once(line int, name string, value any) {
	if s := find(p.health, name); s == nil {
		p.check(line, name, value)
	} else if s.value != value {
		p.note(line, "%s is the same for all endpoints of a service; that of line %d is used", name, s.line)
	}
}

// checkOption reads the option that chooses the kind of check.
func (p *proxy) checkOption(s *statement) {
	p.checks.kind = *s
	if !p.checks.sent {
		p.uncheck("method", "path", "host") // of defaults
	}
	switch s.word(1) {
	case "httpchk":
		words := s.words[2:]
		switch {
		case p.checks.sent:
		case len(words) == 1:
			p.once(s.line, "path", words[0])
		case len(words) > 1:
			p.once(s.line, "method", words[0])
			p.once(s.line, "path", words[1])
			if _, host, found := strings.Cut(strings.Join(words, " "), "Host:"); found {
				host, _, _ = strings.Cut(strings.TrimSpace(host), "\r")
				p.once(s.line, "host", strings.TrimSpace(host))
			}
		}
	case "smtpchk":
		p.once(s.line, "expect", "220")
	case "redis-check":
		p.once(s.line, "send", "PING\r\n")
		p.once(s.line, "expect", "+PONG")
	default:
		p.answer(s.line, "check", s.word(1))
	}
}

// uncheck takes fields back.
func (p *proxy) uncheck(names ...string) {
	p.health = slices.DeleteFunc(p.health, func(s setting) bool { return slices.Contains(names, s.name) })
}

// step sets a field by a step of a check, of which vipd has one of each kind.
func (p *proxy) step(line int, name, value string) {
	if first := find(p.health, name); first != nil && first.value != value {
		p.note(line, "a check sends one text and awaits one, here that of line %d; nearest is a check of type exec that takes all steps", first.line)
		return
	}
	p.once(line, name, value)
}

// checkRule reads http-check and tcp-check lines.
func (p *proxy) checkRule(s *statement) {
	switch {
	case s.is("http-check", "send"):
		p.checkSend(s)
	case s.is("http-check", "expect", "status"):
		p.step(s.line, "status", strings.ReplaceAll(s.word(3), " ", ","))
	case s.is("http-check", "expect", "string"), s.is("tcp-check", "expect", "string"):
		p.step(s.line, "expect", strings.Join(s.words[3:], " "))
	case s.is("tcp-check", "send"):
		p.step(s.line, "send", s.word(2))
	case s.is("tcp-check", "connect"), s.is("http-check", "connect"):
		for i, word := range s.words {
			if word == "port" {
				p.checkPort(s.line, s.word(i+1))
			}
			p.checks.tls = p.checks.tls || word == "ssl"
		}
	case s.is("http-check", "disable-on-404"):
		p.note(s.line, "nearest is \"vipctl drain\"")
	default:
		p.note(s.line, "nearest are status and expect, a text that the answer has")
	}
}

func (p *proxy) checkPort(line int, text string) {
	if port, err := parsePort(text); err == nil {
		p.once(line, "port", int64(port))
	}
}

// checkSend reads "http-check send meth M uri U hdr Name Value".
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
		default:
			p.note(s.line, "%s: "+noEquivalent, s.words[i])
		}
		i++
	}
	if len(headers) > 0 {
		p.check(s.line, "headers", headers)
	}
}

// checkServer reads the options of a server line that are about its check.
func (p *proxy) checkServer(line int, name string, e *server) {
	c := &p.checks
	if name == "check-ssl" {
		c.tls = true
		return
	}
	value := e.value()
	switch name {
	case "inter", "fastinter":
		d, err := parseSpan(value, time.Millisecond)
		if err != nil {
			p.note(line, "%s: %v", name, err)
			return
		}
		to := &c.times.interval
		if name == "fastinter" {
			to = &c.times.fast
		}
		if to.line > 0 && to.time != d {
			p.note(line, "%s is the same for all endpoints of a service; that of line %d is used", name, to.line)
			return
		}
		if to.line == 0 {
			*to = span{time: d, line: line}
		}
	case "rise", "fall":
		if n := number(value); n > 0 {
			p.once(line, name, n)
		}
	case "port":
		p.checkPort(line, value)
	case "addr":
		p.note(line, "addr %s: checks go to the endpoint's own address; nearest is a check of type exec", value)
	case "verify":
		if value == "none" {
			p.once(line, "verify", false)
		}
	case "ca-file":
		p.once(line, "ca_file", value)
	case "check-sni":
		p.once(line, "host", value)
	default:
		p.note(line, "%s %s: vipd does not speak TLS with endpoints", name, value)
	}
}

// finishCheck completes the health table.
func (p *proxy) finishCheck() {
	c, first := &p.checks, setting{name: "type", value: "tcp", line: p.checks.kind.line}
	if c.kind.is("option", "httpchk") {
		first.value = "http"
		if c.tls {
			first.value = "https"
		}
	} else if c.tls && c.kind.line > 0 {
		p.note(c.kind.line, "checks of type tcp do not speak TLS; nearest is type https")
	}
	if c.kind.line == 0 {
		first.why = "check, without an option for another kind"
	}
	// What is about the traffic, which vipd does not encrypt, is noted there.
	if first.value != "https" {
		p.uncheck("verify", "ca_file")
	}
	if first.value == "tcp" {
		p.uncheck("host")
	} else {
		p.health = defaulted(p.health, "method", "OPTIONS")
	}
	p.health = slices.Insert(p.health, 0, first)
	if c.times.timeout.line == 0 {
		c.times.timeout = span{time: below(cmp.Or(c.times.interval.time, usualInterval)), why: originDefault}
	}
	p.checkTimes(p.service, c.times)
	if c.cut > 0 {
		p.check(c.cut, "on_failure", "cut")
	}
}
