package convert

import (
	"strconv"
	"time"
)

// proxy is a service that is being converted from a frontend and a backend.
type proxy struct {
	*haproxy
	*service
	idle  idle
	rules haproxyRules
	// stick is the statement "stick on src", and table is its stick-table.
	stick, table statement
	balance      statement
	// consistent reports whether hash-type is "consistent".
	consistent bool
	defaults   []string
	servers    []server
	checks     checkRules
	// allBackups reports whether all backups share the connections. Otherwise the first backup gets
	// all of them.
	allBackups bool
}

// idle holds the idle timeouts. The shorter timeout of both sides ends a connection.
type idle struct {
	client, server, tunnel span
}

// shortest returns the timeout that ends an idle connection: the tunnel timeout if it is set, and
// otherwise the shorter of the client and server timeouts.
func (i *idle) shortest() span {
	switch {
	case i.tunnel.line > 0:
		return i.tunnel
	case i.client.time == 0 || i.server.time > 0 && i.server.time < i.client.time:
		return i.server
	}
	return i.client
}

func (p *proxy) statement(s *statement) {
	switch s.word(0) {
	case "mode":
		if s.word(1) != "tcp" {
			p.note(s.line, "vipd balances connections and does not read HTTP: rules about requests have no equivalent. Keep HAProxy behind one of vipd's VIPs if you need them")
		}
	case "balance":
		p.balance = *s
	case "hash-type":
		p.consistent = s.word(1) == "consistent"
	case "timeout":
		p.timeout(s)
	case "acl":
		p.rules.acls[s.word(1)] = append(p.rules.acls[s.word(1)], s.rest(2))
	case "tcp-request":
		p.tcpRequest(s)
	case "http-request":
		p.httpRequest(s)
	case "block", "reqdeny", "reqideny", "reqtarpit", "redirect":
		p.disable(p.service, s.line, "HAProxy answers some requests itself here, but vipd would forward them to the endpoints")
	case "stick-table":
		p.table = *s
	case "stick":
		p.stickOn(s)
	case "server", "default-server", "server-template":
		p.addServer(s)
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
		p.note(s.line, "vipd has no queue: if an endpoint refuses a connection, vipd tries the next endpoint")
	case "client-fin", "server-fin":
		p.note(s.line, "vipd has no separate timeout for half-closed connections; idle_timeout also ends them")
	default:
		p.note(s.line, "vipd does not read HTTP; the nearest setting is idle_timeout")
	}
}

func (p *proxy) stickOn(s *statement) {
	if s.is("stick", "on", "src") || s.is("stick", "match", "src") || s.is("stick", "store-request", "src") {
		p.stick = *s
		return
	}
	p.note(s.line, "the nearest setting is affinity = \"client_ip\", which identifies clients only by their address")
}

func (p *proxy) option(s *statement) {
	switch name := s.word(1); name {
	case "allbackups":
		p.allBackups = true
	default:
		if isCheckOption(name) {
			p.checkOption(s)
			return
		}
		p.answer(s.line, "option", name)
	}
}

// scheduler sets the scheduler from the balance and hash-type lines.
func (p *proxy) scheduler() {
	if p.balance.line == 0 {
		return
	}
	word := p.balance.word(1)
	as, known := map[string]scheduling{
		"roundrobin": {"wrr", ""}, "static-rr": {"wrr", ""}, "leastconn": {"wlc", ""}, "random": {"random", ""}, "source": {"sh", ""},
		"first": {"wrr", "the nearest settings are backup = true in the later servers, and max_connections in the first servers"},
	}[word]
	switch {
	case word == "source" && p.consistent, word == "hash" && p.balance.word(2) == "src":
		as = scheduling{"mh", ""}
	case !known:
		as = scheduling{"sh", "vipd does not read HTTP; the nearest setting is scheduler = \"sh\", which chooses by the client's address"}
	}
	p.schedule(p.service, p.balance.line, as)
}

// sticky sets the affinity from the "stick on" line and its table.
func (p *proxy) sticky() {
	if p.stick.line == 0 {
		if p.table.line > 0 {
			p.note(p.table.line, "vipd does not count events per client")
		}
		return
	}
	p.set(p.stick.line, "affinity", "client_ip")
	for i, word := range p.table.words {
		if word == "expire" {
			p.setTime(p.service, p.table.line, "affinity_timeout", p.table.word(i+1), time.Millisecond)
		}
		if word == "type" && p.table.word(i+1) != "ip" && p.table.word(i+1) != "ipv6" {
			p.note(p.table.line, "vipd identifies clients only by their address")
		}
	}
}

// finish sets the fields that depend on several lines.
func (p *proxy) finish() {
	p.scheduler()
	p.sticky()
	if at := p.idle.shortest(); at.line > 0 {
		p.set(at.line, "idle_timeout", seconds(at.time))
	}
	p.serverSettings()
	p.track()
	p.finishCheck()
	for _, set := range p.rules.sets {
		p.restrict(p.service, set.rules, true)
	}
}

// number parses a non-negative integer. It returns -1 if the text is not a number.
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return -1
	}
	return n
}
