package convert

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
)

// checks writes a virtual service's health table.
func (l *ldirectord) checks(s *service, v *virtual) {
	kind, given := l.find(v, "checktype")
	if !given {
		kind = directive{"checktype", "negotiate", v.line}
	}
	line := kind.line
	switch name := kind.value; {
	case name == "on":
		return
	case name == "off":
		l.disable(s, line, "with checktype = off, ldirectord never activates a server")
		return
	case name == "ping":
		l.note(line, "not checked: vipd has no ping check; the nearest types are tcp, and exec with a program that pings")
		return
	case name == "connect" && v.proto == balancer.UDP:
		l.note(line, "not checked: for UDP, ldirectord pings; the nearest types are dns and udp, which query the server")
		return
	case name == "connect":
		s.check(line, "type", "tcp")
	case name == "external" || name == "external-perl":
		l.external(s, v, line)
	case name == "negotiate" || isNumber(name):
		if name != "negotiate" {
			l.note(line, "every check is of type negotiate, because an endpoint has only one kind of check")
		}
		l.negotiate(s, v)
	default:
		l.disable(s, line, "vipctl does not recognise this checktype")
		return
	}
	if len(s.health) > 0 {
		l.common(s, v, kind.value == "negotiate" || isNumber(kind.value))
	}
}

// external writes a check that runs the program named in a directive.
func (l *ldirectord) external(s *service, v *virtual, line int) {
	program := directive{"checkcommand", "/bin/true", line}
	if own, given := l.find(v, "checkcommand"); given {
		program = own
	}
	addr, err := netip.ParseAddr(s.vips[0].value.(string))
	if err != nil {
		return // a service without an address is disabled
	}
	s.check(line, "type", "exec")
	s.check(program.line, "command", checkCommand(unquoted(program.value), addr, v.port))
	l.note(program.line, "vipd runs the program as nobody; set user in the health table for another user. Make the program writable only by root")
}

// negotiate writes a check that uses the service's protocol.
func (l *ldirectord) negotiate(s *service, v *virtual) {
	service := v.negotiated()
	request, receive := l.requests(s, v)
	udp := v.proto == balancer.UDP
	switch name := service.value; {
	case name == "none":
		return
	case name == "http" || name == "https":
		s.check(service.line, "type", name)
		l.web(s, v, request)
		l.expect(s, receive)
	case name == "dns":
		l.dns(s, service, request, receive)
	case udp:
		l.note(service.line, "not checked: the nearest types are udp with send and expect, and exec")
	case name == "simpletcp":
		s.check(service.line, "type", "tcp")
		if request.value != "" {
			s.check(request.line, "send", strings.ReplaceAll(request.value, `\n`, "\n"))
		}
		l.expect(s, receive)
	case greetings()[name] != "":
		s.check(service.line, "type", "tcp")
		s.check(service.line, "expect", greetings()[name])
	case slices.Contains(connectOnly(), name):
		s.check(service.line, "type", "tcp")
		l.note(service.line, "the check only connects; the nearest type is exec with a client for this protocol")
	default:
		l.disable(s, service.line, "vipctl does not recognise this service")
	}
}

// web writes an HTTP check.
func (l *ldirectord) web(s *service, v *virtual, request directive) {
	path := request.value
	if rest, absolute := strings.CutPrefix(path, "http"); absolute && strings.Contains(rest, "://") {
		l.note(request.line, "vipd sends the check to each endpoint, not to the address in the request")
		_, rest, _ = strings.Cut(rest, "://")
		host, after, _ := strings.Cut(rest, "/")
		s.check(request.line, "host", host)
		path = after
	}
	if path != "" {
		s.check(request.line, "path", "/"+strings.TrimPrefix(path, "/"))
	}
	if host, given := v.own["virtualhost"]; given {
		s.check(host.line, "host", unquoted(host.value))
	}
	if method, given := v.own["httpmethod"]; given && strings.EqualFold(method.value, "HEAD") {
		s.check(method.line, "method", "HEAD")
	}
	s.health = put(s.health, setting{name: "status", value: "200-299", why: originDefault})
	if s.health[0].value == "https" {
		s.health = put(s.health, setting{name: "verify", value: false, why: "ldirectord does not verify certificates"})
	}
}

// expect sets the text that an answer must contain.
func (l *ldirectord) expect(s *service, receive directive) {
	switch {
	case receive.value == "":
	case isPattern(receive.value):
		l.note(receive.line, "the nearest setting is expect, which searches for text, not for a pattern")
	default:
		s.check(receive.line, "expect", receive.value)
	}
}

// dns writes a DNS check that looks up a name's address, or an address's name.
func (l *ldirectord) dns(s *service, service, request, receive directive) {
	s.check(service.line, "type", "dns")
	query := cmp.Or(request.value, ".")
	if addr, err := netip.ParseAddr(query); err == nil && addr.Is4() {
		parts := strings.Split(query, ".")
		slices.Reverse(parts)
		query = strings.Join(parts, ".") + ".in-addr.arpa PTR"
	} else if query == "." {
		query = ". SOA"
	}
	s.check(cmp.Or(request.line, service.line), "query", query)
	if receive.value != "" {
		s.check(receive.line, "expect", receive.value)
	}
}

// common writes the fields that all kinds of checks share: the port, the intervals, the timeout and
// the counts.
func (l *ldirectord) common(s *service, v *virtual, negotiates bool) {
	if port, given := l.find(v, "checkport"); given {
		if n, err := parsePort(port.value); err == nil {
			s.check(port.line, "port", int64(n))
		} else {
			l.note(port.line, "%v", err)
		}
	}
	t := timing{interval: span{time: 10 * time.Second, why: originDefault}, timeout: span{time: 5 * time.Second, why: originDefault}}
	names := []string{"checktimeout", "negotiatetimeout", "connecttimeout"}
	if negotiates {
		t.timeout.time = 30 * time.Second
		names = []string{"negotiatetimeout", "connecttimeout", "checktimeout"}
	}
	for _, name := range names {
		if one, given := l.find(v, name); given {
			if at, ok := l.span(one.line, one.value, time.Second); ok && at.time > 0 {
				t.timeout = at
			}
			break
		}
	}
	if one, given := l.find(v, "checkinterval"); given {
		if at, ok := l.span(one.line, one.value, time.Second); ok && at.time > 0 {
			t.interval = at
		}
	}
	if longest := below(t.interval.time); t.timeout.line == 0 && t.timeout.time > longest {
		t.timeout = span{time: longest, why: "must be below interval; ldirectord's default is " + seconds(t.timeout.time)}
	}
	l.checkTimes(s, t)
	fall := setting{name: "fall", value: int64(1), why: originDefault}
	if one, given := l.find(v, "failurecount"); given && number(one.value) > 0 {
		fall = setting{name: "fall", value: number(one.value), line: one.line}
	}
	s.health = put(put(s.health, fall), setting{name: "rise", value: int64(1), why: "in ldirectord, one successful check brings a server up"})
	if one, given := l.find(v, "quiescent"); given && one.value == "no" {
		s.check(one.line, "on_failure", "cut")
	}
}
