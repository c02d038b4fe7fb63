package convert

import (
	"slices"
	"strings"
)

// haproxy is an HAProxy configuration that is being converted.
type haproxy struct {
	*draft
	sections []*section
	// backends maps names to the sections that contain servers, including listen sections.
	backends map[string]*section
	// used holds the backends that became services. chosen holds the backends that only rules
	// select.
	used, chosen map[string]bool
}

const (
	proxyMode = "userspace"
	proxyWhy  = "works as a proxy, like the original program; in kernel modes, endpoints see the clients' addresses and must route replies through this host"
)

// haproxyAnswers returns notes about HAProxy features that vipd does not have. Each server option
// among them is followed by a value.
func haproxyAnswers() []answer {
	return []answer{
		{"section", "backend defaults", ""},
		{"section", "global", "settings of HAProxy's process; vipd needs none of them"},
		{"section", "peers", "vipd instances do not share client tables; the nearest setting is scheduler = \"mh\", which needs no table"},
		{"section", "resolvers", ownResolver},
		{"", "bind default_backend use_backend description id disabled enabled guid no", ""},
		{"", "retries", "vipd tries each endpoint only once; if a connection attempt fails, it tries another endpoint, and the client does not notice"},
		{"", "maxconn fullconn rate-limit", nearBound},
		{"", "source", ownAddress + "; source in the health table is only for checks"},
		{"", "log log-format log-tag capture unique-id-format", nearLog},
		{"", "cookie http-response compression errorfile http-reuse stats monitor-uri http-after-response", noHTTP},
		{"option", "redispatch clitcpka srvtcpka tcpka log-health-checks splice-auto splice-request splice-response tcp-smart-accept tcp-smart-connect", ""},
		{"option", "tcplog dontlognull dontlog-normal", nearLog},
		{"option", "httplog forwardfor httpclose http-server-close http-keep-alive forceclose http-no-delay originalto http-buffer-request", noHTTP},
		{"check", "tcp-check", ""},
		{"check", "mysql-check pgsql-check ldap-check ssl-hello-chk", "the nearest check is of type tcp, which proves that the port is open, or of type exec, with a program that queries the server"},
		{"check", "external-check", "the nearest check is of type exec; the converted check is of type tcp"},
		{"server", "crt sni alpn curves sigalgs client-sigalgs ciphers ciphersuites crl-file verifyhost ssl-max-ver ssl-min-ver", noServerTLS},
		{"server", "cookie proto ws", noHTTP},
		{"server", "agent-send", "vipd sends nothing to agents; an agent must answer without a request"},
		{"server", "observe error-limit on-error", "the nearest setting is a short fast_interval in the health table"},
		{"server", "minconn maxqueue", "the nearest setting is max_connections; vipd has no queue"},
		{"server", "downinter", "vipd checks endpoints that are down at the usual interval"},
		{"server", "resolvers init-addr resolve-prefer resolve-opts", ownResolver},
		{"server", "source usesrc interface", ownAddress},
		{"server", "id namespace redir on-marked-up log-bufsize socks4 init-state pool-max-conn pool-purge-delay pool-low-conn check-proto check-alpn shard log-proto tcp-ut max-reuse guid hash-key", noEquivalent},
	}
}

const (
	noServerTLS = "vipd does not speak TLS with endpoints; it forwards connections as clients send them"
	nearAgent   = "the nearest equivalent is a program that calls \"vipctl weight\" or \"vipctl drain\""
)

func readHAProxy(d *draft) error {
	h := &haproxy{draft: d, backends: map[string]*section{}, used: map[string]bool{}, chosen: map[string]bool{}}
	d.mode = proxyMode
	d.modeWhy = proxyWhy
	d.answers = haproxyAnswers()
	p := &haproxyParser{haproxy: h, named: map[string]*section{}}
	for i := range d.lines {
		p.read(i + 1)
	}
	for _, s := range h.sections {
		if s.kind == "backend" || s.kind == "listen" && h.backends[s.name] == nil {
			h.backends[s.name] = s
		}
	}
	for _, s := range h.sections {
		if s.kind != "frontend" && s.kind != "listen" {
			h.answer(s.line, "section", s.kind)
			continue
		}
		h.frontend(s)
	}
	for _, s := range h.sections {
		if s.kind != "backend" || h.used[s.name] {
			continue
		}
		if h.chosen[s.name] {
			h.note(s.line, "left out: only rules select it; write a service with its own VIP or port")
		} else {
			h.note(s.line, "left out: no frontend has it as its default_backend")
		}
	}
	return nil
}

// route holds the backends to which a frontend sends clients.
type route struct {
	// name is the backend for clients that match no rule, or "" if there is none.
	name string
	// rules are the use_backend lines with a condition.
	rules []*statement
}

// routeOf reads a frontend's backends. A rule without a condition ends the list of rules.
func routeOf(statements []*statement) (r route) {
	for _, s := range statements {
		if s.is("default_backend") {
			r.name = s.word(1)
		}
	}
	for _, s := range statements {
		if !s.is("use_backend") {
			continue
		}
		if len(s.words) == 2 && !strings.Contains(s.word(1), "%") {
			r.name = s.word(1)
			break
		}
		r.rules = append(r.rules, s)
	}
	return r
}

// frontend creates services from a frontend and its backend, or from a listen section.
func (h *haproxy) frontend(front *section) {
	outer := front.all()
	r := routeOf(outer)
	h.used[r.name] = true
	if disabled(outer) {
		h.note(front.line, "left out: it is disabled")
		return
	}
	back := h.backends[r.name]
	switch {
	case front.kind == "listen" && r.name == "":
		back = front
	case r.name == "" && len(r.rules) > 0:
		back = h.backends[r.rules[0].word(1)]
	}
	if back == front && len(r.rules) == 0 && !slices.ContainsFunc(outer, func(s *statement) bool { return strings.HasPrefix(s.word(0), "server") }) {
		h.note(front.line, "left out: it has no server; vipd's own status page is at [api] http")
		return
	}
	missing := back == nil
	if missing {
		back = &section{kind: "backend", line: front.line}
	}
	for _, rule := range r.rules {
		h.chosen[rule.word(1)] = true
	}
	h.serve(front, back, func(s *service) {
		h.refuseRoute(s, front, r, missing)
	})
}

// refuseRoute disables a service if its frontend has no backend, or if rules choose the backend.
func (h *haproxy) refuseRoute(s *service, front *section, r route, missing bool) {
	if missing && r.name != "" {
		h.disable(s, front.line, "there is no backend %q in this file; convert a file that has it", plain(r.name))
	} else if missing && len(r.rules) == 0 {
		h.disable(s, front.line, "it has no backend")
	}
	for _, rule := range r.rules {
		if rule.word(1) != r.name {
			h.disable(s, rule.line, "clients that match are sent to backend %s, but vipd does not choose by rules. Give that backend a service with its own "+
				"VIP or port, and source_ranges if the rule concerns client addresses", plain(rule.word(1)))
		}
	}
}

// serve creates services from a frontend's listeners and a backend's servers. For a listen section,
// both are the same section.
func (h *haproxy) serve(front, back *section, refuseRoute func(*service)) {
	outer := slices.DeleteFunc(front.all(), func(s *statement) bool { return s.is("bind") || front != back && backendOnly(s) })
	var inner []*statement
	if front != back {
		inner = back.all()
		if disabled(inner) {
			h.note(front.line, "left out: its backend is disabled")
			return
		}
		inner = slices.DeleteFunc(inner, frontendOnly)
	}
	doubtful := doubts(slices.Concat(front.statements, outer, inner)...)
	for _, g := range h.binds(front) {
		for _, s := range h.servicesAt(front.line, front.name, g.listeners, g.failed) {
			p := &proxy{haproxy: h, service: s, rules: newHAProxyRules()}
			for _, one := range outer {
				p.statement(one)
			}
			if front != back {
				p.rules.enterBackend()
			}
			for _, one := range inner {
				p.statement(one)
			}
			p.finish()
			p.refuse(g)
			refuseRoute(s)
			h.disableDoubted(s, doubtful)
		}
	}
}

// backendOnly reports whether a statement in defaults has no effect on frontends. frontendOnly
// reports whether it has no effect on backends.
func backendOnly(s *statement) bool {
	switch s.word(0) {
	case "balance", "hash-type", "server", "default-server", "stick", "stick-table", "http-check", "tcp-check", "retries":
		return true
	case "option":
		return isCheckOption(s.word(1)) || s.is("option", "redispatch")
	case "timeout":
		return !strings.HasPrefix(s.word(1), "client")
	}
	return false
}

func frontendOnly(s *statement) bool {
	return s.is("timeout", "client") || s.is("maxconn") || s.is("bind") || s.is("default_backend") || s.is("use_backend")
}
