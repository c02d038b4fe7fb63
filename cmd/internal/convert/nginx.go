package convert

import (
	"slices"
	"strings"
	"time"

	"vipd/balancer"
)

// nginx is a configuration of nginx while it is read.
type nginx struct {
	*draft
	upstreams map[string]*statement
	used      map[string]bool
}

// nginxAnswers are about what nginx has and vipd has not.
func nginxAnswers() []answer {
	const notRead, noTLS = "not read: convert the included files as well", "vipd does not speak TLS; connections pass as the client sends them"
	return []answer{
		{"file", "http", "vipd balances connections and does not read HTTP; keep nginx behind a VIP of vipd where you need this block"},
		{"file", "include", notRead},
		{"file", "mail", "vipd does not speak mail protocols; nearest is a stream server"},
		{"file", "*", "a setting of nginx's process; vipd needs none of it"},
		{"stream", "include", notRead},
		{"stream", "map geo split_clients limit_conn_zone limit_req_zone", noRules},
		{"", "listen proxy_pass server_name allow deny", ""},
		{"", "proxy_next_upstream_tries proxy_next_upstream_timeout", "vipd tries each endpoint once; connect_timeout bounds each attempt"},
		{"", "proxy_bind", ownAddress + "; in kernel modes endpoints see the client's"},
		{"", "proxy_ssl ssl_certificate ssl_certificate_key ssl_protocols ssl_preread", noTLS},
		{"", "access_log log_format", nearLog},
		{"", "error_log", "nearest are \"vipctl events -f\" and vipd's log"},
		{"", "limit_conn limit_conn_log_level proxy_download_rate proxy_upload_rate", nearBound},
		{"", "proxy_responses proxy_requests", noDatagrams},
	}
}

// readNginx reads the stream block of nginx.conf, or a file that is included there.
func readNginx(d *draft) error {
	nodes, err := d.parseBlocks("#", true)
	if err != nil {
		return err
	}
	n := &nginx{draft: d, upstreams: map[string]*statement{}, used: map[string]bool{}}
	d.mode, d.modeWhy, d.answers = proxyMode, proxyWhy, nginxAnswers()
	var inside []*statement
	for _, one := range nodes {
		switch one.word(0) {
		case "stream":
			inside = append(inside, one.children...)
		case "upstream", "server":
			inside = append(inside, one)
		default:
			n.answer(one.line, "file", one.word(0))
		}
	}
	return n.stream(inside)
}

// stream reads the statements of a stream block.
func (n *nginx) stream(nodes []*statement) error {
	var outer, servers []*statement
	for _, one := range nodes {
		switch one.word(0) {
		case "upstream":
			n.upstreams[one.word(1)] = one
		case "server":
			servers = append(servers, one)
		case "include", "map", "geo", "split_clients", "limit_conn_zone", "limit_req_zone":
			n.answer(one.line, "stream", one.word(0))
		default:
			outer = append(outer, one)
		}
	}
	for _, s := range servers {
		if err := n.server(s, outer); err != nil {
			return err
		}
	}
	for _, one := range nodes {
		if one.word(0) == "upstream" && !n.used[one.word(1)] {
			n.note(one.line, "left out: no server passes connections to it")
		}
	}
	return nil
}

// server makes services of a server block.
func (n *nginx) server(block *statement, outer []*statement) error {
	var listeners []listener
	pass := (*statement)(nil)
	for _, one := range block.children {
		switch one.word(0) {
		case "listen":
			more, err := n.listen(one)
			if err != nil {
				return err
			}
			listeners = append(listeners, more...)
		case "proxy_pass":
			pass = one
		}
	}
	if pass == nil || strings.Contains(pass.word(1), "$") {
		line := block.line
		if pass != nil {
			line = pass.line
		}
		n.note(line, "left out: vipd does not choose by rules; give each upstream a separate service, with its VIP or port")
		return nil
	}
	if len(listeners) == 0 {
		n.note(block.line, "left out: no address and port that vipd could serve")
	}
	upstream := n.upstreams[pass.word(1)]
	name := pass.word(1)
	if upstream == nil {
		upstream = &statement{line: pass.line, children: []*statement{{words: []string{"server", pass.word(1)}, line: pass.line}}}
		name = "server-" + name
	}
	n.used[pass.word(1)] = true
	settings := slices.DeleteFunc(slices.Clone(block.children), func(one *statement) bool { return one.word(0) == "listen" })
	for _, s := range n.spread(block.line, name, listeners) {
		if err := n.spend(block.line, upstream.size()+len(outer)+len(settings)); err != nil {
			return err
		}
		n.upstream(s, upstream)
		for _, one := range slices.Concat(outer, settings) {
			n.setting(s, one)
		}
		n.access(s, settings, outer)
	}
	return nil
}

// access reads who may connect: the first allow or deny line that is about a client decides. A server has those around it where it
// has none of its own.
func (n *nginx) access(s *service, rules, outer []*statement) {
	isRule := func(one *statement) bool { return one.word(0) == "allow" || one.word(0) == "deny" }
	if !slices.ContainsFunc(rules, isRule) {
		rules = outer
	}
	var allowed []string
	for _, one := range rules {
		switch all := one.word(1) == "all"; {
		case !isRule(one):
		case one.word(0) == "allow" && all:
			return
		case one.word(0) == "allow":
			allowed = append(allowed, one.word(1))
		case !all:
			n.note(one.line, nearRanges)
		case len(allowed) == 0:
			n.disable(s, one.line, "the origin lets no client connect; set source_ranges to the networks that may")
			return
		default:
			s.set(one.line, "source_ranges", prefixes(allowed))
			return
		}
	}
}

func (n *nginx) listen(one *statement) ([]listener, error) {
	place, options := one.word(1), one.rest(2)
	if strings.HasPrefix(place, "unix:") {
		n.note(one.line, "vipd listens on addresses, not on Unix sockets")
		return nil, nil
	}
	protocol := balancer.TCP
	for _, o := range options {
		switch {
		case o == "udp":
			protocol = balancer.UDP
		case o == "ssl":
			n.note(one.line, noTLSEnd)
		case o == "proxy_protocol":
			n.note(one.line, noPROXY)
		case o == "reuseport", strings.HasPrefix(o, "backlog="), strings.HasPrefix(o, "ipv6only="), strings.HasPrefix(o, "so_keepalive="):
		default:
			n.note(one.line, "%s: "+noEquivalent, o)
		}
	}
	host, ports := splitPort(place)
	if ports == "" && !strings.ContainsAny(host, ".:") {
		host, ports = "", host
	}
	return n.listeners(listener{proto: protocol, line: one.line}, host, ports, "listen", true, slices.Contains(options, "ipv6only=off"))
}

func (n *nginx) upstream(s *service, block *statement) {
	for _, one := range block.children {
		switch one.word(0) {
		case "server":
			n.endpointOf(s, one)
		case "least_conn":
			s.set(one.line, "scheduler", "wlc")
		case "hash":
			scheduler := "sh"
			if one.word(2) == "consistent" {
				scheduler = "mh"
			}
			s.set(one.line, "scheduler", scheduler)
			if one.word(1) != "$remote_addr" && one.word(1) != "$binary_remote_addr" {
				n.note(one.line, "nearest is scheduler = %q, by the client's address alone", scheduler)
			}
		case "random":
			s.set(one.line, "scheduler", "random")
			if len(one.words) > 1 {
				n.schedule(s, one.line, scheduling{"wlc", "nearest is scheduler = \"wlc\", which compares all endpoints instead of two"})
			}
		case "least_time":
			n.schedule(s, one.line, scheduling{"wlc", "vipd does not measure answers; nearest is scheduler = \"wlc\""})
		case "zone":
		default:
			n.note(one.line, noEquivalent)
		}
	}
}

// endpointOf adds the endpoint of a server line of an upstream.
func (n *nginx) endpointOf(s *service, one *statement) {
	host, portText := splitPort(one.word(1))
	if host == "unix" {
		n.note(one.line, "left out: endpoints have addresses, not Unix sockets")
		return
	}
	fields := n.endpointAt(s, one.line, host, portText)
	if fields == nil {
		return
	}
	for _, o := range one.rest(2) {
		name, value, _ := strings.Cut(o, "=")
		switch name {
		case "weight":
			n.amount(fields, one.line, name, "weight", value)
		case "max_conns":
			n.amount(fields, one.line, name, "max_connections", value)
		case "backup":
			fields["backup"] = true
		case "down":
			fields["draining"] = true
		case "slow_start":
			n.setTime(s, one.line, "slow_start", value, time.Second)
		case "max_fails", "fail_timeout":
			n.note(one.line, "%s: a connection that fails goes to the next endpoint; a health table finds out before connections fail", o)
		default:
			n.note(one.line, "%s: "+noEquivalent, o)
		}
	}
}

// setting reads another line of a server or stream block.
func (n *nginx) setting(s *service, one *statement) {
	switch name, value := one.word(0), one.word(1); name {
	case "proxy_timeout":
		n.setTime(s, one.line, "idle_timeout", value, time.Second)
	case "proxy_connect_timeout":
		n.setTime(s, one.line, "connect_timeout", value, time.Second)
	case "proxy_protocol":
		if value == "on" {
			s.set(one.line, "proxy_protocol", "v1")
		}
	case "health_check":
		n.health(s, one)
	case "proxy_next_upstream":
		if value == "off" {
			n.note(one.line, "vipd tries the next endpoint before the client notices")
		}
	default:
		n.answer(one.line, "", name)
	}
}

// health reads health_check of nginx Plus.
func (n *nginx) health(s *service, one *statement) {
	s.check(one.line, "type", "tcp")
	t := timing{interval: span{time: 5 * time.Second, why: originDefault}}
	fall, rise := int64(1), int64(1)
	for _, o := range one.rest(1) {
		name, value, _ := strings.Cut(o, "=")
		switch count := number(value); {
		case name == "interval":
			if d, err := parseSpan(value, time.Second); err == nil {
				t.interval = span{time: d, line: one.line}
			}
		case name == "passes" && count > 0:
			rise = count
		case name == "fails" && count > 0:
			fall = count
		case name == "port" && count > 0:
			s.check(one.line, "port", count)
		case name == "udp":
			s.check(one.line, "type", "udp")
			s.health = defaulted(s.health, "send", "nginx health check")
		default:
			n.note(one.line, "%s: nearest are send and expect in the health table", o)
		}
	}
	n.checkTimes(s, t)
	s.check(one.line, "fall", fall)
	s.check(one.line, "rise", rise)
}
