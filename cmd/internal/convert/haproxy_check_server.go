package convert

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// track copies a tracked server's check to the servers that track it.
func (p *proxy) track() {
	var from *section
	for _, s := range p.usedServers() {
		if !s.has("track") || s.checked() {
			continue
		}
		backend, name, found := strings.Cut(s.options["track"], "/")
		if !found {
			backend, name = "", s.options["track"]
		}
		section, target := p.trackedServer(backend, name)
		switch {
		case target == nil:
			p.note(s.line, "not checked: the server that it tracks is not in this file")
		case from != nil && section != from:
			p.note(s.line, "not checked: all endpoints of a service share one check, but this server tracks a server of another backend")
		default:
			p.copyCheck(s, target)
			from = section
		}
	}
	if from == nil {
		return
	}
	p.used[from.name] = true
	for _, one := range from.all() {
		if isCheckStep(one) || one.is("option") && isCheckOption(one.word(1)) || one.is("timeout", "check") {
			p.statement(one)
		}
	}
}

// trackedServer returns a server and its section. If backend is "", it searches the section that is
// being read, and the returned section is nil.
func (p *proxy) trackedServer(backend, name string) (*section, *server) {
	if backend == "" {
		for i := range p.servers {
			if p.servers[i].name == name {
				return nil, &p.servers[i]
			}
		}
		return nil, nil
	}
	from := p.backends[backend]
	if from == nil {
		return nil, nil
	}
	reader := &proxy{haproxy: &haproxy{draft: newDraft(p.format, p.file, "", Options{})}, service: &service{}}
	for _, s := range from.all() {
		if s.is("server") || s.is("default-server") {
			reader.addServer(s)
		}
	}
	for i := range reader.servers {
		if reader.servers[i].name == name {
			return from, &reader.servers[i]
		}
	}
	return nil, nil
}

// copyCheck copies a tracked server's check options.
func (p *proxy) copyCheck(s, target *server) {
	for _, option := range []string{"check", "inter", "fastinter", "rise", "fall", "port", "addr", "check-ssl", "check-sni", "verify", "ca-file"} {
		if value, has := target.options[option]; has {
			s.options[option] = value
		}
	}
	host, port := splitPort(target.place)
	if !target.has("addr") {
		s.options["addr"] = host
	}
	if !target.has("port") && port != "" {
		s.options["port"] = port
	}
}

// finishCheck completes the health table from the backend's lines and its servers' options.
func (p *proxy) finishCheck() {
	var checked []*server
	for _, s := range p.usedServers() {
		if s.checked() {
			checked = append(checked, s)
		}
	}
	defer p.agent()
	if len(checked) == 0 {
		p.health = nil
		return
	}
	for _, s := range p.usedServers() {
		if !s.checked() {
			p.note(s.line, "has no check in HAProxy, but vipd checks all endpoints of a service")
		}
	}
	if !p.checks.kind.is("option", "httpchk") {
		p.finishSteps()
	}
	p.serverChecks(checked)
	c, kind := &p.checks, setting{name: "type", value: "tcp", line: p.checks.kind.line}
	if c.kind.is("option", "httpchk") {
		kind.value = "http"
		if c.tls {
			kind.value = "https"
		}
	} else if c.tls && c.kind.line > 0 {
		p.note(c.kind.line, "tcp checks do not speak TLS; the nearest type is https")
	}
	if c.kind.line == 0 {
		kind.why = "check, with no option that selects another type"
	}
	if kind.value != "https" {
		p.uncheck("verify", "ca_file")
	}
	if kind.value == "tcp" {
		p.uncheck("host", "headers")
	} else {
		p.health = defaulted(p.health, "method", "OPTIONS")
	}
	p.health = slices.Insert(p.health, 0, kind)
	p.checkTargets(checked)
	if c.times.timeout.line == 0 {
		c.times.timeout = span{time: below(cmp.Or(c.times.interval.time, usualInterval)), why: originDefault}
	}
	p.checkTimes(p.service, c.times)
	p.onFailure(checked)
}

// serverChecks sets the fields that HAProxy has per server but vipd has per service. It uses the
// first server's values.
func (p *proxy) serverChecks(checked []*server) {
	first := checked[0]
	for _, s := range checked[1:] {
		var different []string
		for _, option := range []string{"inter", "fastinter", "rise", "fall", "verify", "ca-file", "check-sni"} {
			if s.options[option] != first.options[option] {
				different = append(different, option)
			}
		}
		if p.speaksTLS(s) != p.speaksTLS(first) {
			different = append(different, "check-ssl")
		}
		if len(different) > 0 {
			p.note(s.line, "all endpoints use the check on line %d; this server's check differs in %s", first.line, strings.Join(different, ", "))
		}
	}
	for _, time := range []struct {
		option string
		to     *span
	}{{"inter", &p.checks.times.interval}, {"fastinter", &p.checks.times.fast}} {
		if text, has := first.options[time.option]; has {
			*time.to = p.checkTime(first.line, text)
		}
	}
	for _, option := range []string{"rise", "fall"} {
		if n := number(first.options[option]); n > 0 {
			p.once(first.line, option, n)
		}
	}
	p.checks.tls = p.checks.tls || p.speaksTLS(first)
	if first.options["verify"] == "none" {
		p.once(first.line, "verify", false)
	}
	if file := first.options["ca-file"]; file != "" {
		p.once(first.line, "ca_file", file)
	}
	if name := first.options["check-sni"]; name != "" {
		p.once(first.line, "host", name)
	}
}

// checkTime parses a duration in a server's check options. A number without a unit is in
// milliseconds.
func (p *proxy) checkTime(line int, text string) span {
	at, _ := p.span(line, text, time.Millisecond)
	return at
}

// speaksTLS reports whether a server's check uses TLS.
func (p *proxy) speaksTLS(s *server) bool {
	return s.has("check-ssl") || s.has("ssl") && !s.has("port") && !s.has("addr")
}

// checkTargets sets the checks' port. If a check connects to an address other than its endpoint's,
// it disables the service.
func (p *proxy) checkTargets(checked []*server) {
	ports := make([]checkPort, len(checked))
	for i, s := range checked {
		ports[i] = checkPort{endpoint: s.endpoint, line: s.line, port: p.checks.port.port}
		if text := s.options["port"]; text != "" && ports[i].port == 0 {
			port, err := parsePort(text)
			if err != nil {
				p.note(s.line, "left out: %v", err)
			}
			ports[i].port = port
		}
		if text := s.options["addr"]; text != "" {
			if addr, err := parseAddr(text); err != nil || addr != p.endpoints[s.endpoint].address() {
				p.disable(p.service, s.line, "the check connects to %s, but vipd's checks connect to the endpoint itself: use a check of type exec, or remove the health table", plain(text))
			}
		}
	}
	p.service.setCheckPorts(ports)
}

// onFailure sets on_failure to end the connections of failed endpoints, if HAProxy does so for all
// servers.
func (p *proxy) onFailure(checked []*server) {
	cuts := func(s *server) bool { return s.options["on-marked-down"] == "shutdown-sessions" }
	for _, s := range checked {
		if !cuts(s) {
			for _, other := range checked {
				if cuts(other) {
					p.note(other.line, "not set: on_failure applies to all endpoints of a service, but the server on line %d has no on-marked-down", s.line)
				}
			}
			return
		}
	}
	p.check(checked[0].line, "on_failure", "cut")
}
