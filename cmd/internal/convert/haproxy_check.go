package convert

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// checkRules are what a backend says of its checks.
type checkRules struct {
	kind node
	// set are fields of the health table that rules and servers set.
	set   []setting
	times timing
	// tls: checks speak TLS.
	tls bool
	// sent: a step says what is sent, whatever the option says.
	sent bool
	// cut is the line that ends connections of failed servers; 0 means none does.
	cut int
}

// put sets a field; what is there already differs from server to server, and stays.
func (c *checkRules) put(p *haproxy, line int, name string, value any) {
	if s := find(c.set, name); s == nil {
		c.set = append(c.set, setting{name: name, value: value, line: line})
	} else if s.value != value {
		p.note(line, "%s is the same for all endpoints of a service; that of line %d is used", name, s.line)
	}
}

// option reads the option that chooses the kind of check.
func (c *checkRules) option(p *haproxy, s *node) {
	c.kind = *s
	if !c.sent {
		c.drop("method", "path", "host") // of defaults
	}
	switch s.word(1) {
	case "httpchk":
		words := s.words[2:]
		switch {
		case c.sent:
		case len(words) == 1:
			c.put(p, s.line, "path", words[0])
		case len(words) > 1:
			c.put(p, s.line, "method", words[0])
			c.put(p, s.line, "path", words[1])
			if _, host, found := strings.Cut(strings.Join(words, " "), "Host:"); found {
				host, _, _ = strings.Cut(strings.TrimSpace(host), "\r")
				c.put(p, s.line, "host", strings.TrimSpace(host))
			}
		}
	case "smtpchk":
		c.put(p, s.line, "expect", "220")
	case "redis-check":
		c.put(p, s.line, "send", "PING\r\n")
		c.put(p, s.line, "expect", "+PONG")
	default:
		p.answer(s.line, "check", s.word(1))
	}
}

// drop takes fields back.
func (c *checkRules) drop(names ...string) {
	c.set = slices.DeleteFunc(c.set, func(s setting) bool { return slices.Contains(names, s.name) })
}

// step sets a field by a step of a check, of which vipd has one of each kind.
func (c *checkRules) step(p *haproxy, line int, name, value string) {
	if first := find(c.set, name); first != nil && first.value != value {
		p.note(line, "a check sends one text and awaits one, here that of line %d; nearest is a check of type exec that takes all steps", first.line)
		return
	}
	c.put(p, line, name, value)
}

// rule reads http-check and tcp-check lines.
func (c *checkRules) rule(p *haproxy, s *node) {
	switch {
	case s.is("http-check", "send"):
		c.send(p, s)
	case s.is("http-check", "expect", "status"):
		c.step(p, s.line, "status", strings.ReplaceAll(s.word(3), " ", ","))
	case s.is("http-check", "expect", "string"), s.is("tcp-check", "expect", "string"):
		c.step(p, s.line, "expect", strings.Join(s.words[3:], " "))
	case s.is("tcp-check", "send"):
		c.step(p, s.line, "send", s.word(2))
	case s.is("tcp-check", "connect"), s.is("http-check", "connect"):
		for i, word := range s.words {
			if word == "port" {
				if port, err := parsePort(s.word(i + 1)); err == nil {
					c.put(p, s.line, "port", int64(port))
				}
			}
			c.tls = c.tls || word == "ssl"
		}
	case s.is("http-check", "disable-on-404"):
		p.note(s.line, "nearest is \"vipctl drain\"")
	default:
		p.note(s.line, "nearest are status and expect, a text that the answer has")
	}
}

// send reads "http-check send meth M uri U hdr Name Value".
func (c *checkRules) send(p *haproxy, s *node) {
	headers := map[string]any{}
	c.sent = true
	c.drop("method", "path", "host", "headers")
	for i := 2; i < len(s.words); i++ {
		switch value := s.word(i + 1); s.words[i] {
		case "meth":
			c.put(p, s.line, "method", value)
		case "uri":
			c.put(p, s.line, "path", value)
		case "hdr":
			if strings.EqualFold(value, "Host") {
				c.put(p, s.line, "host", s.word(i+2))
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
		c.set = append(c.set, setting{name: "headers", value: headers, line: s.line})
	}
}

// server reads the options of a server line that are about its check.
func (c *checkRules) server(p *proxy, line int, name string, e *server) {
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
			c.put(p.haproxy, line, name, n)
		}
	case "port":
		if port, err := parsePort(value); err == nil {
			c.put(p.haproxy, line, "port", int64(port))
		}
	case "addr":
		p.note(line, "addr %s: checks go to the endpoint's own address; nearest is a check of type exec", value)
	case "verify":
		if value == "none" {
			c.put(p.haproxy, line, "verify", false)
		}
	case "ca-file":
		c.put(p.haproxy, line, "ca_file", value)
	case "check-sni":
		c.put(p.haproxy, line, "host", value)
	default:
		p.note(line, "%s %s: vipd does not speak TLS with endpoints", name, value)
	}
}

// write writes the health table of a service.
func (c *checkRules) write(p *proxy) {
	kind := "tcp"
	if c.kind.is("option", "httpchk") {
		kind = "http"
		if c.tls {
			kind = "https"
		}
	} else if c.tls && c.kind.line > 0 {
		p.note(c.kind.line, "checks of type tcp do not speak TLS; nearest is type https")
	}
	p.health = append(p.health, setting{name: "type", value: kind, line: c.kind.line})
	if c.kind.line == 0 {
		p.health[0].why = "check, without an option for another kind"
	}
	for _, s := range c.set {
		tls := (s.name == "verify" || s.name == "ca_file") && kind != "https"
		if tls || s.name == "host" && kind == "tcp" {
			continue // it is about the traffic, which vipd does not encrypt; noted there
		}
		p.health = append(p.health, s)
	}
	if kind != "tcp" {
		p.health = defaulted(p.health, "method", "OPTIONS")
	}
	if c.times.timeout.line == 0 {
		c.times.timeout = span{time: below(cmp.Or(c.times.interval.time, usualInterval)), why: originDefault}
	}
	p.checkTimes(p.service, c.times)
	if c.cut > 0 {
		p.health = append(p.health, setting{name: "on_failure", value: "cut", line: c.cut})
	}
}
