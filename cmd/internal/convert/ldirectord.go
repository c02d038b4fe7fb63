package convert

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
)

// ldirectord is an ldirectord configuration that is being converted.
type ldirectord struct {
	*draft
	// globals holds the global directives, which precede the services.
	globals directives
}

// directive is a line of the form "name = value".
type directive struct {
	name, value string
	line        int
}

// directives maps each name to the last directive with that name.
type directives map[string]directive

// virtual is an ldirectord virtual service.
type virtual struct {
	directive
	body []directive
	// own holds the directives in body by name. If a directive is repeated, own holds only the last
	// one.
	own   directives
	port  uint16
	proto balancer.Protocol
}

// ldirectordAnswers returns notes about ldirectord directives that have no equivalent in vipd.
func ldirectordAnswers() []answer {
	const near = "the nearest equivalent is [hooks] on_health, one program for all services, or an alert on vipd's metrics"
	return []answer{
		{"", "real real6 fallback fallback6 scheduler persistent netmask protocol quiescent checktype service checkport request receive " +
			"virtualhost httpmethod checkcommand checktimeout negotiatetimeout connecttimeout checkinterval failurecount autoreload " +
			"readdquiescent fork supervised", ""},
		{"", "emailalert emailalertfreq emailalertstatus emailalertfrom smtp fallbackcommand", near},
		{"", "logfile monitorfile", "the nearest equivalents are vipd's log and \"vipctl events -f\""},
		{"", "callback", "vipd does not copy its file; the nearest equivalent is a fleet, which shares services through etcd"},
		{"", "execute", "not read: convert that configuration as well"},
		{"", "cleanstop", "the services continue to work while vipd is stopped; \"vipctl cleanup\" removes them"},
		{"", "maintenancedir", "the nearest command is \"vipctl drain\""},
		{"", "checkcount", "vipd has no ping check; the nearest setting is fall in the health table"},
		{"", "login passwd secret database load", "checks do not log in; the nearest equivalent is a check of type exec that logs in"},
		{"", "ops", "the nearest setting is a short udp_timeout in [ipvs]: vipd keeps UDP flows on their endpoint"},
	}
}

// readLdirectord reads ldirectord.cf. The directives of a virtual service are indented and follow
// its line.
func readLdirectord(d *draft) error {
	l := &ldirectord{draft: d, globals: directives{}}
	d.answers = ldirectordAnswers()
	var services []*virtual
	var current *virtual
	for i := range d.lines {
		one, indented, ok := l.directive(i + 1)
		switch {
		case !ok:
		case one.name == "virtual" || one.name == "virtual6":
			current = &virtual{directive: one, own: directives{}}
			services = append(services, current)
		case indented && current != nil:
			current.body = append(current.body, one)
			current.own[one.name] = one
			l.answer(one.line, "", one.name)
		default:
			current = nil
			l.globals[one.name] = one
			l.answer(one.line, "", one.name)
		}
	}
	for _, v := range services {
		l.virtual(v)
	}
	return nil
}

// directive parses a line. It hides passwords, so they don't appear in the output's comments.
func (l *ldirectord) directive(line int) (one directive, indented, ok bool) {
	text := l.lines[line-1]
	text = text[:startOfComment(text)]
	name, value, isDirective := strings.Cut(text, "=")
	one = directive{strings.TrimSpace(name), strings.TrimSpace(value), line}
	switch {
	case strings.TrimSpace(text) == "":
		return one, false, false
	case !isDirective || one.name == "":
		l.note(line, "left out: a directive must have the form \"NAME = VALUE\"")
		return one, false, false
	case one.name == "passwd" || one.name == "secret" || one.name == "login":
		l.lines[line-1] = one.name + " = (hidden)"
	}
	return one, text[0] == ' ' || text[0] == '\t', true
}

// startOfComment returns the index at which a line's comment starts, or the length of the line.
func startOfComment(text string) int {
	quoted := false
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '#' && !quoted && (i == 0 || text[i-1] <= ' '):
			return i
		}
	}
	return len(text)
}

// find returns a directive of the service or, if there is none, the global directive.
func (l *ldirectord) find(v *virtual, name string) (directive, bool) {
	one, known := v.own[name]
	if !known {
		one, known = l.globals[name]
	}
	return one, known
}

// virtual creates a service from an ldirectord virtual service.
func (l *ldirectord) virtual(v *virtual) {
	if mark := number(v.value); mark >= 0 {
		l.note(v.line, noMarks)
		return
	}
	host, portText := splitPort(v.value)
	var err error
	if v.port, err = servicePort(portText); err != nil {
		l.unusable(v, "%v", err)
		return
	}
	v.proto = balancer.TCP
	if v.port == 53 {
		v.proto = balancer.UDP
	}
	if p, given := v.own["protocol"]; given {
		v.proto = balancer.Protocol(strings.ToLower(p.value))
	}
	addr, err := parseAddr(host)
	if err != nil {
		l.unusable(v, "%v; write the address that the name stands for", err)
		return
	}
	name := "vs-" + addr.String() + "-" + strconv.Itoa(int(v.port))
	if v.proto != balancer.TCP {
		name += "-" + string(v.proto)
	}
	s := l.splitByPorts(v.line, name, []listener{{addr, v.port, v.proto, v.line}})[0]
	l.servers(s, v)
	l.settings(s, v)
	l.forwardPorts(s)
	l.checks(s, v)
}

// unusable adds a disabled service, because its address or port is unknown.
func (l *ldirectord) unusable(v *virtual, format string, args ...any) {
	s := l.newService(v.line, "vs", v.value)
	l.disable(s, v.line, format, args...)
	v.port = 0
	l.servers(s, v)
}

// servicePort parses a port number or a port name, as in /etc/services. It knows only the ports
// that load balancers usually serve.
func servicePort(text string) (uint16, error) {
	known := map[string]uint16{
		"ftp": 21, "ssh": 22, "telnet": 23, "smtp": 25, "domain": 53, "http": 80, "www": 80, "pop3": 110, "nntp": 119, "ntp": 123, "imap": 143,
		"imap2": 143, "ldap": 389, "https": 443, "submission": 587, "ldaps": 636, "imaps": 993, "pop3s": 995, "radius": 1812, "mysql": 3306,
		"postgresql": 5432, "sip": 5060,
	}
	if port := known[text]; port != 0 {
		return port, nil
	}
	return parsePort(text)
}

// servers adds the real servers as endpoints, and the fallback server as a backup.
func (l *ldirectord) servers(s *service, v *virtual) {
	for _, one := range v.body {
		if one.name == "real" || one.name == "real6" {
			l.real(s, one)
		}
	}
	fallback, given := v.own["fallback"]
	if !given {
		fallback, given = v.own["fallback6"]
	}
	if name := "fallback" + strings.TrimPrefix(v.name, "virtual"); !given {
		fallback, given = l.globals[name]
	}
	words := strings.Fields(fallback.value)
	if !given || len(words) == 0 {
		return
	}
	host, port := l.target(fallback.line, words[0])
	if fields := l.endpointAt(s, fallback.line, host, port); fields != nil {
		fields["backup"] = true
		l.note(fallback.line, "gets clients only while its checks pass, because vipd checks it like the real servers; ldirectord does not check it")
	}
}

// target splits an address and its port. It replaces the name of a port with its number.
func (l *ldirectord) target(line int, text string) (host, port string) {
	host, port = splitPort(text)
	if port == "" {
		return host, ""
	}
	number, err := servicePort(port)
	if err != nil {
		l.note(line, "%v", err)
		return host, ""
	}
	return host, strconv.Itoa(int(number))
}

// real adds the endpoints for a "real" directive: ADDRESS[->ADDRESS][:PORT] METHOD [WEIGHT]
// ["REQUEST", "RECEIVE"].
func (l *ldirectord) real(s *service, one directive) {
	plainPart, _, _ := strings.Cut(one.value, "\"")
	words := strings.Fields(plainPart)
	if len(words) < 1 {
		l.note(one.line, "left out: a real server must have the form \"ADDRESS:PORT METHOD\", with the method gate, masq or ipip")
		return
	}
	first, last, isRange := strings.Cut(words[0], "->")
	host, port := l.target(one.line, first)
	hosts := []string{host}
	if isRange {
		to, lastPort := l.target(one.line, last)
		port = lastPort
		all, err := addressRange(host + "-" + to)
		if err != nil {
			l.note(one.line, "left out: %v", err)
			return
		}
		hosts = hosts[:0]
		for _, a := range all {
			hosts = append(hosts, a.String())
		}
	}
	for _, host := range hosts {
		fields := l.endpointAt(s, one.line, host, port)
		if fields != nil && len(words) > 2 {
			l.amount(fields, one.line, "weight", "weight", words[2])
		}
	}
	l.method(s, one.line, words)
}

// method sets the endpoints' forwarding method.
func (l *ldirectord) method(s *service, line int, words []string) {
	way := "dr"
	if len(words) > 1 {
		known := false
		if way, known = map[string]string{"gate": "dr", "masq": "nat", "ipip": "tunnel"}[words[1]]; !known {
			l.disable(s, line, "this server's forwarding method is unknown: use gate, masq or ipip")
			return
		}
	}
	if first := find(s.settings, "forward"); first == nil {
		s.set(line, "forward", way)
	} else if first.value != way {
		l.disable(s, line, "forward is the same for all endpoints of a service, but it is %q on line %d; write a service for each forwarding method", first.value, first.line)
	}
}

// settings sets the scheduler and the persistence.
func (l *ldirectord) settings(s *service, v *virtual) {
	if one, given := v.own["scheduler"]; given {
		l.scheduler(s, one.line, one.value)
	}
	s.settings = defaulted(s.settings, "scheduler", "wrr")
	if one, given := v.own["persistent"]; given {
		if t, ok := l.span(one.line, one.value, time.Second); ok && t.time > 0 {
			s.persistent(one.line, t.time)
		}
	}
	if one, given := v.own["netmask"]; given && one.value != "255.255.255.255" && one.value != "128" {
		l.granularity(one.line)
	}
}

func unquoted(text string) string {
	if inner, ok := strings.CutPrefix(text, "\""); ok {
		text = strings.TrimSuffix(inner, "\"")
	}
	return text
}

// requests returns the request that the real servers' checks send, and the text that they expect.
// If the servers differ, it disables the service, because all endpoints have the same check.
func (l *ldirectord) requests(s *service, v *virtual) (request, receive directive) {
	request, receive = v.own["request"], v.own["receive"]
	pair, seen := "", false
	for _, one := range v.body {
		if one.name != "real" && one.name != "real6" {
			continue
		}
		own := ""
		if i := strings.IndexByte(one.value, '"'); i >= 0 {
			own = one.value[i:]
		}
		switch {
		case !seen:
			pair, seen = own, true
		case pair != own:
			l.disable(s, one.line, "this server has a different check, but all endpoints of a service share one check; write a service for each kind of check")
			return request, receive
		}
		if parts := strings.SplitN(own, ",", 2); len(parts) == 2 {
			request = directive{"request", strings.TrimSpace(parts[0]), one.line}
			receive = directive{"receive", strings.TrimSpace(parts[1]), one.line}
		}
	}
	request.value, receive.value = unquoted(request.value), unquoted(receive.value)
	return request, receive
}

// checkCommand returns the command for a check that runs a program with ldirectord's arguments: the
// virtual service's address and port, and the server's address and port.
func checkCommand(program string, vip netip.Addr, port uint16) []any {
	script := fmt.Sprintf("exec \"$0\" %s %d \"$VIPD_ADDRESS\" \"$VIPD_PORT\"", vip, port)
	return []any{"/bin/sh", "-c", script, program}
}

// isPattern reports whether a regular expression has special characters.
func isPattern(text string) bool {
	return strings.ContainsAny(text, `\^$.|?*+()[]{}`)
}

// greetings maps each protocol in which the server speaks first to the start of the server's
// greeting.
func greetings() map[string]string {
	return map[string]string{"smtp": "220", "submission": "220", "ftp": "220", "nntp": "20", "pop": "+OK", "imap": "* OK"}
}

// negotiated returns the directive with the protocol of a negotiating check. Its default depends on
// the port.
func (v *virtual) negotiated() directive {
	if one, given := v.own["service"]; given {
		return one
	}
	usual := map[uint16]string{
		21: "ftp", 25: "smtp", 53: "dns", 80: "http", 110: "pop", 119: "nntp", 143: "imap", 389: "ldap", 443: "https", 587: "submission",
		993: "imaps", 995: "pops", 1521: "oracle", 1812: "radius", 3128: "http_proxy", 3306: "mysql", 5432: "pgsql", 5060: "sip",
	}
	name := usual[v.port]
	if name == "" {
		name = "none"
	}
	return directive{"service", name, v.line}
}

// isNumber reports whether a checktype is numeric. It is then the number of connect checks between
// two negotiating checks.
func isNumber(kind string) bool {
	return number(strings.TrimPrefix(kind, "checktimeout")) >= 0
}

// connectOnly lists the protocols that vipd can only check by connecting (type tcp).
func connectOnly() []string {
	return []string{"http_proxy", "imaps", "ldap", "ldaps", "mysql", "oracle", "pgsql", "pops", "radius", "sip"}
}
