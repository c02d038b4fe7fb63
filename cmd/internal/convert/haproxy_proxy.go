package convert

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// proxy is one service while the statements of its frontend and backend are read.
type proxy struct {
	*haproxy
	*service
	idle idle
	// acls are the networks of acls about the client's address.
	acls map[string][]string
	// stick is the line of "stick on src", and table that of its stick-table.
	stick, table statement
	balance      statement
	// consistent: hash-type is consistent.
	consistent bool
	defaults   []string
	servers    []server
	checks     checkRules
	// allBackups: all backups that are up share the connections, else the first of them has all.
	allBackups bool
}

func (p *proxy) statement(s *statement) {
	switch s.word(0) {
	case "mode":
		if s.word(1) != "tcp" {
			p.note(s.line, "vipd balances connections and does not read HTTP: rules about requests have no equivalent. Keep HAProxy behind a VIP of vipd where you need them")
		}
	case "balance":
		p.balance = *s
	case "hash-type":
		p.consistent = s.word(1) == "consistent"
	case "timeout":
		p.timeout(s)
	case "acl":
		p.acl(s)
	case "tcp-request":
		p.request(s)
	case "stick-table":
		p.table = *s
	case "stick":
		p.stickOn(s)
	case "server", "default-server", "server-template":
		p.server(s)
	case "option":
		p.option(s)
	case "http-check", "tcp-check":
		p.checkRule(s)
	default:
		p.answer(s.line, "", s.word(0))
	}
}

func (p *proxy) timeout(s *statement) {
	at, ok := p.span(s.line, s.word(2), time.Millisecond)
	if !ok {
		return
	}
	switch s.word(1) {
	case "connect":
		p.set(s.line, "connect_timeout", seconds(at.time))
	case "client":
		p.idle.client = at
	case "server":
		p.idle.server = at
	case "tunnel":
		p.idle.tunnel = at
	case "check":
		p.checks.times.timeout = at
	case "queue":
		p.note(s.line, "vipd has no queue: a connection that no endpoint takes goes to the next one, or is refused")
	default:
		p.note(s.line, "vipd does not read HTTP; idle_timeout is the nearest")
	}
}

// acl remembers an acl about the client's address.
func (p *proxy) acl(s *statement) {
	if s.word(2) != "src" || strings.HasPrefix(s.word(3), "-") {
		p.note(s.line, "vipd has rules about the client's address alone: source_ranges, the networks that may connect")
		return
	}
	p.acls[s.word(1)] = append(p.acls[s.word(1)], s.words[3:]...)
}

// request reads rules that reject all clients but some, and notes others.
func (p *proxy) request(s *statement) {
	if !s.is("tcp-request", "connection", "reject") || len(s.words) < 5 {
		if !s.is("tcp-request", "inspect-delay") && !s.is("tcp-request", "content", "accept") {
			p.note(s.line, nearRanges)
		}
		return
	}
	condition := strings.Join(s.words[4:], " ")
	var networks []string
	if name, negated := strings.CutPrefix(condition, "!"); negated {
		inner, anonymous := strings.CutPrefix(strings.TrimSpace(name), "{")
		if words := strings.Fields(strings.TrimSuffix(inner, "}")); anonymous && len(words) > 1 && words[0] == "src" {
			networks = words[1:]
		} else {
			networks = p.acls[strings.TrimSpace(name)]
		}
	}
	if s.word(3) == "unless" {
		networks = p.acls[condition]
	}
	if len(networks) == 0 || find(p.settings, "source_ranges") != nil {
		p.note(s.line, nearRanges)
		return
	}
	p.set(s.line, "source_ranges", prefixes(networks))
}

// prefixes writes addresses and networks as networks.
func prefixes(all []string) []any {
	out := make([]any, len(all))
	for i, text := range all {
		if addr, err := netip.ParseAddr(text); err == nil {
			text = netip.PrefixFrom(addr, addr.BitLen()).String()
		} else if prefix, err := netip.ParsePrefix(text); err == nil {
			text = prefix.Masked().String()
		}
		out[i] = text
	}
	return out
}

func (p *proxy) stickOn(s *statement) {
	if s.is("stick", "on", "src") || s.is("stick", "match", "src") || s.is("stick", "store-request", "src") {
		p.stick = *s
		return
	}
	p.note(s.line, "nearest is affinity = \"client_ip\": a client is known by its address alone")
}

func (p *proxy) option(s *statement) {
	switch name := s.word(1); name {
	case "httpchk", "tcp-check", "smtpchk", "redis-check", "mysql-check", "pgsql-check", "ldap-check", "ssl-hello-chk", "external-check":
		p.checkOption(s)
	case "allbackups":
		p.allBackups = true
	default:
		p.answer(s.line, "option", name)
	}
}

// scheduler sets the scheduler of a balance line, and of hash-type.
func (p *proxy) scheduler() {
	if p.balance.line == 0 {
		return
	}
	word := p.balance.word(1)
	as, known := map[string]scheduling{
		"roundrobin": {"wrr", ""}, "static-rr": {"wrr", ""}, "leastconn": {"wlc", ""}, "random": {"random", ""}, "source": {"sh", ""},
		"first": {"wrr", "nearest are backup = true in the later servers, and max_connections in the first ones"},
	}[word]
	switch {
	case word == "source" && p.consistent, word == "hash" && p.balance.word(2) == "src":
		as = scheduling{"mh", ""}
	case !known:
		as = scheduling{"sh", "vipd does not read HTTP; nearest is scheduler = \"sh\", by the client's address"}
	}
	p.schedule(p.service, p.balance.line, as)
}

// sticky sets the affinity of a stick line and its table.
func (p *proxy) sticky() {
	if p.stick.line == 0 {
		if p.table.line > 0 {
			p.note(p.table.line, "vipd keeps no counters of clients")
		}
		return
	}
	p.set(p.stick.line, "affinity", "client_ip")
	for i, word := range p.table.words {
		if word == "expire" {
			p.setTime(p.service, p.table.line, "affinity_timeout", p.table.word(i+1), time.Millisecond)
		}
		if word == "type" && p.table.word(i+1) != "ip" && p.table.word(i+1) != "ipv6" {
			p.note(p.table.line, "a client is known by its address alone")
		}
	}
}

// finish sets what depends on several lines.
func (p *proxy) finish() {
	p.scheduler()
	p.sticky()
	if at := p.idle.shortest(); at.line > 0 {
		p.set(at.line, "idle_timeout", seconds(at.time))
	}
	checked, backup := 0, 0
	for i := range p.servers {
		s := &p.servers[i]
		if s.used = p.endpointOf(s); !s.used {
			continue
		}
		if s.checked {
			checked++
			p.checks.tls = p.checks.tls || s.tls && !s.elsewhere
		}
		switch {
		case p.allBackups || s.fields["backup"] == nil:
		case backup == 0:
			backup = s.line
		default:
			s.fields["draining"] = true
			p.note(s.line, "is drained: in vipd backups share connections, in the origin it has them all once that of line %d is down; see \"vipctl undrain\"", backup)
		}
	}
	if checked > 0 {
		p.finishCheck()
	} else {
		p.health = nil
	}
	for _, s := range p.servers {
		if checked > 0 && s.used && !s.checked {
			p.note(s.line, "has no check in the origin; in vipd all endpoints of a service are checked")
		}
	}
}

// number reads a whole number; -1 where it is none.
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// server is a server line, with the words of the default-server lines above it before its own.
type server struct {
	words []string
	line  int
	// checked: it has a check. used: it became an endpoint. tls: it is spoken to by TLS, and by its check too, unless that goes elsewhere.
	checked, used, tls, elsewhere bool
	// fields are the endpoint's, and at is the word that is read.
	fields map[string]any
	at     int
}

func (p *proxy) server(s *statement) {
	switch s.word(0) {
	case "default-server":
		p.defaults = append(p.defaults, s.words[1:]...)
	case "server-template":
		p.note(s.line, "left out: servers that come and go join with \"vipctl register\"")
	default:
		if len(s.words) < 3 {
			p.note(s.line, "left out: a server line is server NAME ADDRESS[:PORT]")
			return
		}
		if p.spend(s.line, len(p.defaults)) != nil {
			return // fitAll returns the error
		}
		words := append(append(s.words[1:3:3], p.defaults...), s.words[3:]...)
		p.servers = append(p.servers, server{words: words, line: s.line})
	}
}

// endpointOf adds the endpoint of a server line, and reports whether it could be read.
func (p *proxy) endpointOf(s *server) bool {
	host, port := splitPort(strings.TrimPrefix(strings.TrimPrefix(s.words[1], "ipv4@"), "ipv6@"))
	if strings.HasPrefix(port, "+") || strings.HasPrefix(port, "-") {
		offset, err := strconv.ParseInt(port, 10, 32)
		sum := p.ports[0].fields()["port"].(int64) + offset
		if err != nil || len(p.ports) > 1 {
			p.note(s.line, "left out: write a service for each port of a range that the servers shift")
			return false
		}
		port = strconv.FormatInt(sum, 10)
	}
	if s.fields = p.endpointAt(p.service, s.line, host, port); s.fields == nil {
		return false
	}
	for s.at = 2; s.at < len(s.words); s.at++ {
		s.option(p, s.words[s.at])
	}
	return true
}

// value is the word behind an option.
func (e *server) value() string {
	if e.at++; e.at < len(e.words) {
		return e.words[e.at]
	}
	return ""
}

func (e *server) option(p *proxy, name string) {
	line := e.line
	switch name {
	case "check":
		e.checked = true
	case "no-check":
		e.checked = false
	case "backup":
		e.fields["backup"] = true
	case "disabled":
		e.fields["draining"] = true
	case "enabled":
		delete(e.fields, "draining")
	case "ssl":
		e.tls = true
		p.note(line, "%s: %s", name, noServerTLS)
	case "weight":
		p.amount(e.fields, line, name, "weight", e.value())
	case "maxconn":
		p.amount(e.fields, line, name, "max_connections", e.value())
	case "send-proxy":
		p.set(line, "proxy_protocol", "v1")
	case "send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn":
		p.set(line, "proxy_protocol", "v2")
	case "slowstart":
		p.setTime(p.service, line, "slow_start", e.value(), time.Millisecond)
	case "on-marked-down":
		if e.value() == "shutdown-sessions" {
			p.checks.cut = line
		}
	case "inter", "fastinter", "rise", "fall", "port", "addr", "verify", "check-ssl", "ca-file", "crt", "check-sni", "sni":
		if slices.Contains(e.words[e.at+1:], name) && name != "check-ssl" {
			e.value() // the server's own value, which stands behind that of default-server, is the one that counts
			return
		}
		e.elsewhere = e.elsewhere || name == "port" || name == "addr"
		p.checkServer(line, name, e)
	default:
		if slices.ContainsFunc(p.answers, func(a answer) bool { return a.in == "server" && slices.Contains(strings.Fields(a.words), name) }) {
			p.note(line, "%s %s: %s", name, e.value(), p.said("server", name))
		} else {
			p.note(line, "%s: %s", name, p.said("flag", name))
		}
	}
}
