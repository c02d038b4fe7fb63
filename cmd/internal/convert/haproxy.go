package convert

import (
	"slices"
	"strings"

	"vipd/balancer"
)

// section is a section of HAProxy's configuration.
type section struct {
	kind, name string
	line       int
	statements []*statement
	// base is the defaults section that holds for it, and inherited counts its statements and those it inherits itself.
	base      *section
	inherited int
}

// inherit makes base the defaults of a section.
func (s *section) inherit(base *section) {
	s.base, s.inherited = base, len(base.statements)+base.inherited+1
}

// size counts what all returns, at most.
func (s *section) size() int { return len(s.statements) + s.inherited + 1 }

// all are the statements that hold in a section, the inherited ones first. Steps of checks are inherited where it has none of its own.
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
	return slices.Concat(parts...)
}

func isCheckStep(s *statement) bool { return s.is("http-check") || s.is("tcp-check") }

// disabled reports whether a section with the statements serves nothing.
func disabled(all []*statement) (is bool) {
	for _, one := range all {
		is = one.is("disabled") || is && !one.is("enabled")
	}
	return is
}

// haproxy is a file of HAProxy while it is read.
type haproxy struct {
	*draft
	sections []*section
	backends map[string]*section
	used     map[string]bool
}

const (
	proxyMode = "userspace"
	proxyWhy  = "a proxy, as before; in kernel modes endpoints see the clients' addresses, and have to route their replies through this host"
)

// haproxyAnswers are about what HAProxy has and vipd has not. Options of a server that are listed have a value.
func haproxyAnswers() []answer {
	return []answer{
		{"section", "backend defaults", ""},
		{"section", "global", "settings of HAProxy's process; vipd needs none of them"},
		{"section", "peers", "vipd instances share nothing about clients; nearest is scheduler = \"mh\", which needs no table"},
		{"section", "resolvers", selfRegister},
		{"", "bind default_backend use_backend description id disabled enabled guid", ""},
		{"", "retries", "vipd tries each endpoint once, then the next one, before the client notices"},
		{"", "maxconn fullconn rate-limit", nearBound},
		{"", "source", ownAddress + "; source in the health table is for checks alone"},
		{"", "log log-format log-tag capture unique-id-format", nearLog},
		{"", "cookie http-request http-response redirect compression errorfile http-reuse stats monitor-uri http-after-response", noHTTP},
		{"option", "redispatch log-health-checks splice-auto splice-request splice-response tcp-smart-accept tcp-smart-connect", ""},
		{"option", "tcplog dontlognull dontlog-normal", nearLog},
		{"option", "httplog forwardfor httpclose http-server-close http-keep-alive forceclose http-no-delay originalto http-buffer-request", noHTTP},
		{"check", "tcp-check", ""},
		{"check", "mysql-check pgsql-check ldap-check ssl-hello-chk", "nearest is a check of type tcp, which proves that the port is open, or one of type exec that asks the server"},
		{"check", "external-check", "nearest is a check of type exec; this one is of type tcp"},
		{"server", "alpn ciphers ciphersuites crl-file verifyhost ssl-max-ver ssl-min-ver", noServerTLS},
		{"server", "cookie proto ws", noHTTP},
		{"flag", "agent-check", nearAgent},
		{"server", "agent-port agent-inter agent-addr agent-send", nearAgent},
		{"server", "observe error-limit on-error", "nearest is a short fast_interval in the health table"},
		{"server", "track", "checks of the same kind and address may be made twice; that is harmless"},
		{"server", "minconn maxqueue", "nearest is max_connections; vipd has no queue"},
		{"server", "downinter", "vipd checks endpoints that are down at the usual interval"},
		{"server", "resolvers init-addr resolve-prefer resolve-opts", selfRegister},
		{"server", "source usesrc interface", ownAddress},
		{"server", "id namespace redir on-marked-up pool-max-conn pool-purge-delay pool-low-conn check-proto check-alpn shard log-proto tcp-ut max-reuse guid hash-key", noEquivalent},
	}
}

const (
	noServerTLS = "vipd does not speak TLS with endpoints; connections pass as the client sends them"
	nearAgent   = "nearest is a program that calls \"vipctl weight\" or \"vipctl drain\""
)

func readHAProxy(d *draft) error {
	h := &haproxy{draft: d, backends: map[string]*section{}, used: map[string]bool{}}
	d.mode, d.modeWhy, d.answers = proxyMode, proxyWhy, haproxyAnswers()
	if err := h.split(); err != nil {
		return err
	}
	for _, s := range h.sections {
		if s.kind == "backend" {
			h.backends[s.name] = s
		}
	}
	for _, s := range h.sections {
		var err error
		switch s.kind {
		case "frontend":
			err = h.frontend(s)
		case "listen":
			err = h.serve(s, s)
		default:
			h.answer(s.line, "section", s.kind)
		}
		if err != nil {
			return err
		}
	}
	for _, s := range h.sections {
		if s.kind == "backend" && !h.used[s.name] {
			h.note(s.line, "left out: no frontend has it as its default_backend")
		}
	}
	return nil
}

// split splits the text into sections, and gives each the defaults that hold for it.
func (h *haproxy) split() error {
	kinds := []string{"global", "defaults", "frontend", "backend", "listen", "peers", "resolvers", "userlist", "program", "cache", "mailers",
		"http-errors", "ring", "log-forward", "log-profile", "fcgi-app", "crt-store", "traces", "acme"}
	named := map[string]*section{}
	var current, defaults *section
	for i := range h.lines {
		words, err := h.words(i + 1)
		if err != nil {
			return err
		}
		if len(words) == 0 {
			continue
		}
		if !slices.Contains(kinds, words[0]) {
			if current == nil {
				return h.errorf(i+1, "%q stands outside of a section such as frontend or backend", words[0])
			}
			current.statements = append(current.statements, &statement{words: words, line: i + 1})
			continue
		}
		current = &section{kind: words[0], line: i + 1}
		if len(words) > 1 {
			current.name = words[1]
		}
		from := defaults
		if at := slices.Index(words, "from"); at > 0 && at+1 < len(words) {
			if from = named[words[at+1]]; from == nil {
				return h.errorf(i+1, "there is no section \"defaults %s\" above this line; convert a file that has it", words[at+1])
			}
		}
		switch current.kind {
		case "defaults":
			if slices.Contains(words, "from") {
				current.inherit(from)
			}
			defaults, named[current.name] = current, current
		case "frontend", "backend", "listen":
			if current.name == "" {
				return h.errorf(i+1, "a %s needs a name", current.kind)
			}
			if from != nil {
				current.inherit(from)
			}
		}
		h.sections = append(h.sections, current)
	}
	return nil
}

func (h *haproxy) words(line int) ([]string, error) {
	var out []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	text := []rune(h.lines[line-1])
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(text):
			i++
			if c, special := map[rune]rune{'n': '\n', 'r': '\r', 't': '\t'}[text[i]]; special {
				text[i] = c
			}
			word.WriteRune(text[i])
			inWord = true
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			quote, inWord = c, true
		case c == '#':
			i = len(text)
		case c <= ' ':
			if inWord {
				out = append(out, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, h.errorf(line, "the quotes that open on this line are not closed")
	}
	if inWord {
		out = append(out, word.String())
	}
	return out, nil
}

// frontend makes services of a frontend and its backend.
func (h *haproxy) frontend(front *section) error {
	name := ""
	if err := h.spend(front.line, front.size()); err != nil {
		return err
	}
	for _, s := range front.all() {
		switch {
		case s.is("default_backend"):
			name = s.word(1)
		case s.is("use_backend") && len(s.words) == 2 && name == "":
			name = s.word(1)
		case s.is("use_backend"):
			h.note(s.line, noRules)
		}
	}
	back := h.backends[name]
	switch {
	case name == "":
		h.note(front.line, "left out: the frontend has no default_backend")
		return nil
	case back == nil:
		return h.errorf(front.line, "there is no backend %q in this file; convert a file that has it", name)
	}
	h.used[name] = true
	return h.serve(front, back)
}

// serve makes services of what a frontend listens on and a backend serves; both are the same for a listen section.
func (h *haproxy) serve(front, back *section) error {
	if err := h.spend(front.line, front.size()+back.size()); err != nil {
		return err
	}
	outer, inner := front.all(), back.all()
	if front == back && !slices.ContainsFunc(outer, func(s *statement) bool { return strings.HasPrefix(s.word(0), "server") }) {
		h.note(front.line, "left out: it has no server; vipd's own status page is at [api] http")
		return nil
	}
	if disabled(outer) || disabled(inner) {
		h.note(front.line, "left out: it is disabled")
		return nil
	}
	var listeners []listener
	for _, s := range front.statements {
		if s.is("bind") {
			more, err := h.bind(s)
			if err != nil {
				return err
			}
			listeners = append(listeners, more...)
		}
	}
	if len(listeners) == 0 {
		h.note(front.line, "left out: no address and port that vipd could serve")
	}
	held := slices.DeleteFunc(outer, func(s *statement) bool { return s.is("bind") || front != back && backendOnly(s) })
	if front != back {
		held = append(held, slices.DeleteFunc(inner, frontendOnly)...)
	}
	for _, s := range h.spread(front.line, front.name, listeners) {
		if err := h.spend(front.line, len(held)); err != nil {
			return err
		}
		p := &proxy{haproxy: h, service: s, acls: map[string][]string{}}
		for _, one := range held {
			p.statement(one)
		}
		p.finish()
	}
	return nil
}

// backendOnly reports whether a statement has no effect in a frontend, and frontendOnly whether it has none in a backend: both
// inherit it from defaults.
func backendOnly(s *statement) bool {
	switch s.word(0) {
	case "balance", "hash-type", "server", "default-server", "stick", "stick-table", "http-check", "tcp-check", "retries":
		return true
	case "option":
		return strings.HasSuffix(s.word(1), "chk") || s.is("option", "tcp-check") || s.is("option", "redispatch")
	case "timeout":
		return s.word(1) != "client"
	}
	return false
}

func frontendOnly(s *statement) bool {
	return s.is("timeout", "client") || s.is("maxconn") || s.is("bind") || s.is("default_backend") || s.is("use_backend")
}

func (h *haproxy) bind(s *statement) ([]listener, error) {
	for i, word := range s.words[1:] {
		if i == 0 {
			continue
		}
		switch word {
		case "ssl", "crt":
			h.note(s.line, noTLSEnd)
		case "accept-proxy", "accept-netscaler-cip":
			h.note(s.line, noPROXY)
		}
	}
	var out []listener
	v6only, v4v6 := slices.Contains(s.words, "v6only"), slices.Contains(s.words, "v4v6")
	for place := range strings.SplitSeq(s.word(1), ",") {
		if strings.HasPrefix(place, "/") || strings.Contains(place, "@") && !strings.HasPrefix(place, "ipv") {
			h.note(s.line, "vipd listens on addresses, not on Unix sockets or descriptors")
			continue
		}
		only6 := strings.HasPrefix(place, "ipv6@") || v6only
		host, ports := splitPort(strings.TrimPrefix(strings.TrimPrefix(place, "ipv4@"), "ipv6@"))
		more, err := h.listeners(listener{proto: balancer.TCP, line: s.line}, host, ports, "bind", !only6, only6 || v4v6)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// idle is how long a connection may be silent on the side that is quicker to end it.
type idle struct {
	client, server, tunnel span
}

// shortest is what ends an idle connection: the tunnel's time where there is one, else the shorter one of both sides.
func (i *idle) shortest() span {
	switch {
	case i.tunnel.line > 0:
		return i.tunnel
	case i.client.time == 0 || i.server.time > 0 && i.server.time < i.client.time:
		return i.server
	}
	return i.client
}
