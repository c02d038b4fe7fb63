package convert

import (
	"slices"
	"strings"
	"time"

	"vipd/balancer"
)

// statement is a line of HAProxy's configuration.
type statement struct {
	words []string
	line  int
}

func (s *statement) word(i int) string {
	if i < len(s.words) {
		return s.words[i]
	}
	return ""
}

// is reports whether the statement begins with the words.
func (s *statement) is(words ...string) bool {
	return len(s.words) >= len(words) && slices.Equal(s.words[:len(words)], words)
}

// section is a section of HAProxy's configuration.
type section struct {
	kind, name string
	line       int
	statements []statement
	// base are the statements of the defaults that hold for it.
	base []statement
}

// all are the statements that hold in a section, the inherited ones first.
func (s *section) all() []statement { return slices.Concat(s.base, s.statements) }

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

// readHAProxy reads haproxy.cfg.
func readHAProxy(d *draft) error {
	h := &haproxy{draft: d, backends: map[string]*section{}, used: map[string]bool{}}
	d.mode, d.modeWhy = proxyMode, proxyWhy
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
		case "backend", "defaults":
		case "global":
			h.note(s.line, "settings of HAProxy's process; vipd needs none of them")
		case "peers":
			h.note(s.line, "vipd instances share nothing about clients; nearest is scheduler = \"mh\", which needs no table")
		case "resolvers":
			h.note(s.line, "endpoints have addresses; servers that come and go join with \"vipctl register\"")
		default:
			h.note(s.line, "vipd has no equivalent")
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
			current.statements = append(current.statements, statement{words, i + 1})
			continue
		}
		current = &section{kind: words[0], line: i + 1}
		if len(words) > 1 {
			current.name = words[1]
		}
		from := defaults
		if at := slices.Index(words, "from"); at > 0 && at+1 < len(words) {
			if from = named[words[at+1]]; from == nil {
				return h.errorf(i+1, "there is no section \"defaults %s\" above this line", words[at+1])
			}
		}
		switch current.kind {
		case "defaults":
			if slices.Contains(words, "from") {
				current.base = from.all()
			}
			defaults, named[current.name] = current, current
		case "frontend", "backend", "listen":
			if current.name == "" {
				return h.errorf(i+1, "a %s needs a name", current.kind)
			}
			if from != nil {
				current.base = from.all()
			}
		}
		h.sections = append(h.sections, current)
	}
	return nil
}

// words splits a line of HAProxy's configuration.
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
			word.WriteRune(escaped(text[i]))
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

// escaped is what a character stands for behind a backslash.
func escaped(c rune) rune {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// frontend makes services of a frontend and its backend.
func (h *haproxy) frontend(front *section) error {
	name := ""
	for _, s := range front.all() {
		switch {
		case s.is("default_backend"):
			name = s.word(1)
		case s.is("use_backend") && len(s.words) == 2 && name == "":
			name = s.word(1)
		case s.is("use_backend"):
			h.note(s.line, "vipd does not choose by rules; give each choice a VIP or port, and a service, of its own")
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
	var listeners []listener
	for _, s := range front.statements {
		if s.is("bind") {
			more, err := h.bind(&s)
			if err != nil {
				return err
			}
			listeners = append(listeners, more...)
		}
	}
	if len(listeners) == 0 {
		h.note(front.line, "left out: no address and port that vipd could serve")
	}
	for _, s := range h.spread(front.line, front.name, listeners) {
		p := &proxy{haproxy: h, service: s, acls: map[string][]string{}}
		for _, one := range front.all() {
			if front == back || !backendOnly(&one) {
				p.statement(&one)
			}
		}
		if front != back {
			for _, one := range back.all() {
				if !frontendOnly(&one) {
					p.statement(&one)
				}
			}
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

// bind reads the addresses and ports of a bind line.
func (h *haproxy) bind(s *statement) ([]listener, error) {
	for i, word := range s.words[1:] {
		if i == 0 {
			continue
		}
		switch word {
		case "ssl", "crt":
			h.note(s.line, "vipd does not end TLS: connections go on encrypted, and the endpoints need the certificate")
		case "accept-proxy", "accept-netscaler-cip":
			h.note(s.line, "vipd does not read PROXY headers of clients; they go on to the endpoints as they are")
		}
	}
	var out []listener
	for place := range strings.SplitSeq(s.word(1), ",") {
		if strings.HasPrefix(place, "/") || strings.Contains(place, "@") && !strings.HasPrefix(place, "ipv") {
			h.note(s.line, "vipd listens on addresses, not on Unix sockets or descriptors")
			continue
		}
		more, err := h.place(s, place)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// place reads one ADDRESS:PORT[-PORT] of a bind line.
func (h *haproxy) place(s *statement, place string) ([]listener, error) {
	only6 := strings.HasPrefix(place, "ipv6@")
	place = strings.TrimPrefix(strings.TrimPrefix(place, "ipv4@"), "ipv6@")
	host, ports := splitPort(place)
	first, last, err := h.portRange(s.line, ports, "bind ADDRESS:PORT")
	if err != nil {
		return nil, err
	}
	var out []listener
	only6 = only6 || slices.Contains(s.words, "v6only")
	addresses, err := h.listening(s.line, host, !only6, only6 || slices.Contains(s.words, "v4v6"))
	for _, a := range addresses {
		for port := int(first); port <= int(last); port++ {
			out = append(out, listener{a, uint16(port), balancer.TCP, s.line})
		}
	}
	return out, err
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

// haproxySpan reads a time, in milliseconds where it has no unit.
func haproxySpan(text string) (time.Duration, error) { return parseSpan(text, time.Millisecond) }
