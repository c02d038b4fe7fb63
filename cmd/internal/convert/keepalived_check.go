package convert

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checkSettings are what keepalived inherits from a virtual_server to its checkers, by name.
type checkSettings map[string]*statement

// inheritable are their names.
func inheritable() []string {
	return []string{"delay_loop", "connect_timeout", "retry", "delay_before_retry", "virtualhost"}
}

// take stores the statement if it is one of these.
func (c checkSettings) take(n *statement) bool {
	name := n.word(0)
	if name == "nb_get_retry" {
		name = "retry"
	}
	is := slices.Contains(inheritable(), name)
	if is {
		c[name] = n
	}
	return is
}

// checker is the check of one real_server.
type checker struct {
	server   string
	root     *statement
	settings checkSettings
}

// health makes the health table of the first checker, and notes where others differ from it.
func (k *keepalived) health(s *service, checkers []*checker) {
	var first *checker
	for _, c := range checkers {
		if c != nil && first == nil {
			first = c
		}
	}
	if first == nil {
		return
	}
	want := first.words()
	for i, c := range checkers {
		if k.spend(first.root.line, len(want)/64) != nil {
			return // fitAll returns the error
		}
		switch {
		case c == nil:
			k.note(s.endpoints[i].line, "has no check in the origin; in vipd the check of line %d is that of all endpoints", first.root.line)
		case c.words() != want:
			k.note(c.root.line, "is not the check of line %d, which is that of all endpoints; write a service for each kind of check", first.root.line)
		}
	}
	k.checkOf(s, first)
}

// words are all words of a checker, to compare it with others. The server's own address is the same in all.
func (c *checker) words() string {
	var b strings.Builder
	var write func(n *statement)
	write = func(n *statement) {
		for _, w := range n.words {
			b.WriteString(strings.ReplaceAll(w, c.server, "$SERVER") + " ")
		}
		for _, child := range n.children {
			write(child)
		}
		b.WriteString("\n")
	}
	write(c.root)
	for _, name := range inheritable() {
		if n := c.settings[name]; n != nil {
			write(n)
		}
	}
	return b.String()
}

// checkOf writes a checker as the health table.
func (k *keepalived) checkOf(s *service, c *checker) {
	line, retry := c.root.line, 1
	kinds := map[string]string{"TCP_CHECK": "tcp", "HTTP_GET": "http", "SSL_GET": "https", "SMTP_CHECK": "tcp", "DNS_CHECK": "dns", "MISC_CHECK": "exec", "UDP_CHECK": "udp"}
	kind, known := kinds[c.root.word(0)]
	if !known {
		kind = "tcp"
		k.note(line, "nearest is a check of type tcp, or one of type exec that does the same")
	}
	s.check(line, "type", kind)
	for _, n := range c.root.children {
		if !c.settings.take(n) {
			k.connection(s, n)
		}
	}
	switch c.root.word(0) {
	case "HTTP_GET", "SSL_GET":
		k.web(s, c)
	case "SMTP_CHECK":
		s.check(line, "expect", "220")
	case "DNS_CHECK":
		retry = 3
		k.dns(s, c)
	case "MISC_CHECK":
		retry = 0
		k.misc(s, c)
	case "UDP_CHECK":
		k.udp(s, c)
	}
	k.times(s, c, retry)
}

// connection reads what all checkers may say of their connection.
func (k *keepalived) connection(s *service, n *statement) {
	switch name, value := n.word(0), n.word(1); name {
	case "connect_port":
		if port, err := parsePort(value); err == nil {
			s.check(n.line, "port", int64(port))
		}
	case "bindto":
		s.check(n.line, "source", value)
	case "fwmark":
		if mark, err := strconv.ParseInt(value, 0, 64); err == nil {
			s.check(n.line, "mark", mark)
		}
	default:
		k.answer(n.line, "check", name)
	}
}

// web reads HTTP_GET and SSL_GET: their first url.
func (k *keepalived) web(s *service, c *checker) {
	if c.root.word(0) == "SSL_GET" {
		s.health = put(s.health, setting{name: "verify", value: false, why: "keepalived does not verify certificates"})
	}
	var url *statement
	for _, n := range c.root.children {
		if n.word(0) == "url" && url != nil {
			k.note(n.line, "a check asks for one path; this is the second one")
		} else if n.word(0) == "url" {
			url = n
		}
	}
	if host := c.settings["virtualhost"]; host != nil {
		s.check(host.line, "host", host.word(1))
	}
	s.health = put(s.health, setting{name: "status", value: "200-299", why: originDefault})
	if url == nil {
		return
	}
	for _, n := range url.children {
		switch n.word(0) {
		case "path":
			s.check(n.line, "path", n.word(1))
		case "status_code":
			s.check(n.line, "status", strings.Join(n.rest(1), ","))
		case "virtualhost":
			s.check(n.line, "host", n.word(1))
		case "regex":
			if strings.ContainsAny(n.word(1), `\^$.|?*+()[]{}`) {
				k.note(n.line, "nearest is expect, which looks for a text, not for a pattern")
			} else {
				s.check(n.line, "expect", n.word(1))
			}
		case "digest":
			k.note(n.line, "nearest is expect: a text that the right answer has")
		default:
			k.note(n.line, noEquivalent)
		}
	}
}

// dns reads DNS_CHECK, which asks port 53 of the server for the SOA record of the root where nothing else is said.
func (k *keepalived) dns(s *service, c *checker) {
	name, kind, line := ".", "SOA", c.root.line
	for _, n := range c.root.children {
		switch n.word(0) {
		case "name":
			name, line = n.word(1), n.line
		case "type":
			kind = n.word(1)
		}
	}
	s.check(line, "query", name+" "+kind)
	s.health = defaulted(s.health, "port", int64(53))
}

// misc reads MISC_CHECK. A program that is given the server's address gets it from the environment.
func (k *keepalived) misc(s *service, c *checker) {
	for _, n := range c.root.children {
		switch n.word(0) {
		case "misc_path":
			words := strings.Fields(strings.Join(n.rest(1), " "))
			command := make([]any, 0, len(words)+2)
			if joined := strings.Join(words, " "); strings.Contains(joined, c.server) {
				command = append(command, "/bin/sh", "-c", "exec "+strings.ReplaceAll(joined, c.server, "$VIPD_ADDRESS"))
			} else {
				for _, w := range words {
					command = append(command, w)
				}
			}
			s.check(n.line, "command", command)
		case "misc_timeout":
			c.settings["connect_timeout"] = n
		case "user":
			s.check(n.line, "user", n.word(1))
		case "misc_dynamic":
			k.note(n.line, "the result of a check does not change weights; nearest is \"vipctl weight\"")
		}
	}
}

func (k *keepalived) udp(s *service, c *checker) {
	for _, n := range c.root.children {
		switch n.word(0) {
		case "payload":
			text, err := hex.DecodeString(strings.Join(n.rest(1), ""))
			if err != nil || strings.ContainsFunc(string(text), func(r rune) bool { return r == 0xfffd }) {
				k.note(n.line, "send is text in UTF-8; nearest is a check of type exec")
				continue
			}
			s.check(n.line, "send", string(text))
		case "require_reply", "min_reply_length", "max_reply_length":
			k.note(n.line, "nearest is expect: a text that the answer has")
		}
	}
	s.health = defaulted(s.health, "send", "vipd")
}

// times writes the times of a checker. A failure is one check and its retries; one check that passes is enough.
func (k *keepalived) times(s *service, c *checker, retry int) {
	t := timing{interval: span{time: time.Minute, why: originDefault}}
	if c.root.word(0) != "MISC_CHECK" {
		t.timeout = span{time: 5 * time.Second, why: originDefault}
	}
	for name, to := range map[string]*span{"delay_loop": &t.interval, "connect_timeout": &t.timeout, "delay_before_retry": &t.fast} {
		n := c.settings[name]
		if n == nil {
			continue
		}
		d, err := parseSpan(n.word(1), time.Second)
		if err != nil || d == 0 {
			k.note(n.line, "%q is not a time in seconds", n.word(1))
			continue
		}
		*to = span{time: d, line: n.line}
	}
	k.checkTimes(s, t)
	fall := setting{name: "fall", value: int64(retry + 1), why: "the origin's default: one check and its retries"}
	if n := c.settings["retry"]; n != nil {
		count, err := strconv.ParseInt(n.word(1), 10, 32)
		if err != nil || count < 0 {
			k.note(n.line, "%q is not a number of retries", n.word(1))
		} else {
			fall = setting{name: "fall", value: count + 1, line: n.line}
		}
	}
	s.health = put(put(s.health, fall), setting{name: "rise", value: int64(1), why: "in the origin one check that passes is enough"})
}
