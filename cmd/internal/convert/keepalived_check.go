package convert

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checkSettings maps names to the settings that checkers inherit from a virtual_server.
type checkSettings map[string]*statement

// inheritable returns the names of settings that checkers inherit.
func inheritable() []string {
	return []string{"delay_loop", "connect_timeout", "retry", "delay_before_retry", "virtualhost"}
}

// checkSettingName returns the current name of a setting, which may have an older name.
func checkSettingName(name string) string {
	if name == "nb_get_retry" {
		return "retry"
	}
	return name
}

// store stores the statement if it is an inheritable setting, and reports whether it is.
func (c checkSettings) store(n *statement) bool {
	name := checkSettingName(n.word(0))
	if !slices.Contains(inheritable(), name) {
		return false
	}
	c[name] = n
	return true
}

// checker is the check for one real_server.
type checker struct {
	server   string
	root     *statement
	settings checkSettings
}

// health writes the health table from the first checker. If another checker has a different target,
// it disables the service, because vipd would check the wrong server. Other differences only result
// in notes.
func (k *keepalived) health(s *service, checkers []*checker) {
	at := slices.IndexFunc(checkers, func(c *checker) bool { return c != nil })
	if at < 0 {
		return
	}
	first := checkers[at]
	converted := map[string][]setting{}
	for i, c := range checkers {
		if c == nil {
			k.note(s.endpoints[i].line, "has no check in keepalived, but in vipd the check on line %d applies to all endpoints", first.root.line)
			continue
		}
		words := c.words()
		own, known := converted[words]
		if !known {
			own = k.checkOf(c)
			converted[words] = own
		}
		k.targetOf(s, c)
		if i == at {
			s.health = own
			continue
		}
		k.compareChecks(s, first, c, own)
	}
	k.checkPorts(s, checkers)
}

// compareChecks adds a note for each field in which a check differs from the service's check.
func (k *keepalived) compareChecks(s *service, first, c *checker, own []setting) {
	var different []string
	for _, all := range [][]setting{own, s.health} {
		for _, one := range all {
			a, b := find(own, one.name), find(s.health, one.name)
			if !slices.Contains(different, one.name) && (a == nil || b == nil || fmt.Sprint(a.value) != fmt.Sprint(b.value)) {
				different = append(different, one.name)
			}
		}
	}
	if slices.Contains(different, "mark") {
		k.disable(s, c.root.line, "the check's mark differs from the mark on line %d, but all endpoints share one check: write a service for each mark", first.root.line)
	} else if len(different) > 0 {
		k.note(c.root.line, "all endpoints use the check on line %d; this server's check differs in %s: write a service for each kind of check", first.root.line, strings.Join(different, ", "))
	}
}

// targetOf disables the service if a check connects to an address other than its server's.
func (k *keepalived) targetOf(s *service, c *checker) {
	ip := c.connection("connect_ip")
	if ip == nil {
		return
	}
	target, err := parseAddr(ip.word(1))
	server, errServer := parseAddr(c.server)
	if err != nil || errServer != nil || target != server {
		k.disable(s, ip.line, "the check connects to %s, but vipd's checks connect to the endpoint itself: use a check of type exec, or remove the health table", plain(ip.word(1)))
	}
}

// checkPorts sets the check ports. It omits them if every check uses its endpoint's own port.
func (k *keepalived) checkPorts(s *service, checkers []*checker) {
	var ports []checkPort
	for i, c := range checkers {
		if c == nil {
			continue
		}
		p := checkPort{endpoint: i, line: c.root.line}
		if n := c.connection("connect_port"); n != nil {
			if port, err := parsePort(n.word(1)); err == nil {
				p.port, p.line = port, n.line
			} else {
				k.note(n.line, "left out: %v", err)
			}
		} else if c.root.word(0) == "DNS_CHECK" {
			p.port = 53
		}
		ports = append(ports, p)
	}
	s.setCheckPorts(ports)
}

// words returns a checker's words, for comparison with other checkers. It replaces the server's own
// address, so servers' addresses don't count as differences.
func (c *checker) words() string {
	var b strings.Builder
	var write func(n *statement)
	write = func(n *statement) {
		for _, w := range n.words {
			b.WriteString(replaceAddress(w, c.server, "$SERVER") + " ")
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

// connection returns the statement called name that sets how a check connects, or nil if there is
// none. The statement may be in the "host" block.
func (c *checker) connection(name string) (found *statement) {
	for _, n := range c.root.children {
		if n.word(0) == name {
			found = n
		}
		if n.word(0) != "host" {
			continue
		}
		for _, inner := range n.children {
			if inner.word(0) == name {
				found = inner
			}
		}
	}
	return found
}

// checkOf returns the health table for a checker, without the port.
func (k *keepalived) checkOf(c *checker) []setting {
	s := &service{line: c.root.line}
	line, retry := c.root.line, 1
	kinds := map[string]string{"TCP_CHECK": "tcp", "HTTP_GET": "http", "SSL_GET": "https", "SMTP_CHECK": "tcp", "DNS_CHECK": "dns", "MISC_CHECK": "exec", "UDP_CHECK": "udp"}
	kind, known := kinds[c.root.word(0)]
	if !known {
		kind = "tcp"
		k.note(line, "the nearest check is of type tcp, or of type exec with a program that does the same")
	}
	s.check(line, "type", kind)
	k.connectionFields(s, c, c.root.children)
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
	return s.health
}

// connectionFields converts the statements that set how a check connects.
func (k *keepalived) connectionFields(s *service, c *checker, nodes []*statement) {
	for _, n := range nodes {
		if c.settings.store(n) {
			continue
		}
		switch name, value := n.word(0), n.word(1); name {
		case "connect_port", "connect_ip":
			continue // checkPorts and targetOf compare these
		case "host":
			k.connectionFields(s, c, n.children)
		case "bindto":
			s.check(n.line, "source", value)
		case "fwmark":
			mark, err := strconv.ParseInt(value, 0, 64)
			if err != nil {
				k.note(n.line, "%q is not a mark", plain(value))
				continue
			}
			s.check(n.line, "mark", mark)
		default:
			k.answer(n.line, "check", name)
		}
	}
}

// web converts the first url of HTTP_GET or SSL_GET.
func (k *keepalived) web(s *service, c *checker) {
	if c.root.word(0) == "SSL_GET" {
		s.health = put(s.health, setting{name: "verify", value: false, why: "keepalived does not verify certificates"})
	}
	var url *statement
	for _, n := range c.root.children {
		if n.word(0) == "url" && url != nil {
			k.note(n.line, "a check requests only one path; this is the second path")
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
				k.note(n.line, "the nearest setting is expect, which searches for text, not for a pattern")
			} else {
				s.check(n.line, "expect", n.word(1))
			}
		case "digest":
			k.note(n.line, "the nearest setting is expect, text that a correct answer contains")
		default:
			k.note(n.line, noEquivalent)
		}
	}
}

// dns converts DNS_CHECK. By default, it asks port 53 of the server for the root zone's SOA record.
func (k *keepalived) dns(s *service, c *checker) {
	name := "."
	kind := "SOA"
	line := c.root.line
	for _, n := range c.root.children {
		switch n.word(0) {
		case "name":
			name, line = n.word(1), n.line
		case "type":
			kind = n.word(1)
		}
	}
	s.check(line, "query", name+" "+kind)
}

// misc converts MISC_CHECK. If the arguments contain the server's address, the program gets the
// endpoint's address from the environment instead.
func (k *keepalived) misc(s *service, c *checker) {
	for _, n := range c.root.children {
		switch n.word(0) {
		case "misc_path":
			s.check(n.line, "command", commandOf(n.rest(1), c.server))
		case "misc_timeout":
			c.settings["connect_timeout"] = n
		case "user":
			s.check(n.line, "user", n.word(1))
		case "misc_dynamic":
			k.note(n.line, "a check's result does not change weights; the nearest command is \"vipctl weight\"")
		}
	}
}

func (k *keepalived) udp(s *service, c *checker) {
	for _, n := range c.root.children {
		switch n.word(0) {
		case "payload":
			text, err := hex.DecodeString(strings.Join(n.rest(1), ""))
			if err != nil || strings.ContainsFunc(string(text), func(r rune) bool { return r == 0xfffd }) {
				k.note(n.line, "send accepts only UTF-8 text; the nearest check is of type exec")
				continue
			}
			s.check(n.line, "send", string(text))
		case "require_reply", "min_reply_length", "max_reply_length":
			k.note(n.line, "the nearest setting is expect, text that the answer must contain")
		}
	}
	s.health = defaulted(s.health, "send", "vipd")
}

// times sets the intervals, the timeout and the counts from a checker. A check counts as failed
// after all its retries have failed, and as passed after one success.
func (k *keepalived) times(s *service, c *checker, retry int) {
	t := timing{interval: span{time: time.Minute, why: originDefault}, fast: retryDelay(c)}
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
	if c.root.word(0) == "MISC_CHECK" && t.timeout.time == 0 {
		t.timeout = span{time: below(t.interval.time), why: "keepalived's default: the interval"}
	}
	if t.fast.line == 0 {
		t.fast.time = min(t.fast.time, t.interval.time) // limit a default without a note
	}
	k.checkTimes(s, t)
	fall := setting{name: "fall", value: int64(retry + 1), why: "keepalived's default: one check and its retries"}
	if n := c.settings["retry"]; n != nil {
		count, err := strconv.ParseInt(n.word(1), 10, 32)
		if err != nil || count < 0 {
			k.note(n.line, "%q is not a number of retries", n.word(1))
		} else {
			fall = setting{name: "fall", value: count + 1, line: n.line}
		}
	}
	s.health = put(put(s.health, fall), setting{name: "rise", value: int64(1), why: "in keepalived, one successful check brings a server up"})
}

// retryDelay returns keepalived's default delay_before_retry for the kind of check, or zero if
// there is none.
func retryDelay(c *checker) span {
	switch c.root.word(0) {
	case "HTTP_GET", "SSL_GET":
		return span{time: 3 * time.Second, why: originDefault}
	case "DNS_CHECK", "MISC_CHECK":
		return span{} // DNS_CHECK waits for delay_loop, and MISC_CHECK has no retries
	}
	return span{time: time.Second, why: originDefault}
}
