package convert

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
)

// nginx is an nginx configuration that is being converted.
type nginx struct {
	*draft
	upstreams map[string]*statement
	used      map[string]bool
}

// nginxAnswers returns notes about statements that have no equivalent in vipd.
func nginxAnswers() []answer {
	const notRead, noTLS = "not read: convert the included files as well", "vipd does not speak TLS; it forwards connections as clients send them"
	return []answer{
		{"file", "http", "vipd balances connections and does not read HTTP; keep nginx behind one of vipd's VIPs if you need this block"},
		{"file", "include", notRead},
		{"file", "mail", "vipd does not speak mail protocols; the nearest equivalent is a stream server"},
		{"file", "*", "a setting of nginx's process; vipd does not need it"},
		{"stream", "include", notRead},
		{"stream", "map geo split_clients limit_conn_zone limit_req_zone", noRules},
		{"", "listen proxy_pass server_name allow deny proxy_ssl ssl_verify_client js_access js_preread js_filter", ""},
		{"", "tcp_nodelay proxy_buffer_size preread_buffer_size preread_timeout proxy_socket_keepalive proxy_half_close resolver resolver_timeout status_zone " +
			"variables_hash_max_size variables_hash_bucket_size server_names_hash_max_size server_names_hash_bucket_size proxy_next_upstream_tries", ""},
		{"", "proxy_next_upstream_timeout", "vipd tries each endpoint once; connect_timeout limits each attempt"},
		{"", "proxy_bind", ownAddress + "; in kernel modes endpoints see the client's address"},
		{"", "ssl_certificate ssl_certificate_key ssl_protocols ssl_preread", noTLS},
		{"", "access_log log_format", nearLog},
		{"", "error_log", "the nearest equivalents are \"vipctl events -f\" and vipd's log"},
		{"", "limit_conn limit_conn_log_level proxy_download_rate proxy_upload_rate", nearBound},
		{"", "proxy_responses proxy_requests", noDatagrams},
	}
}

// readNginx reads the stream block in nginx.conf, or an included file.
func readNginx(d *draft) error {
	n := &nginx{draft: d, upstreams: map[string]*statement{}, used: map[string]bool{}}
	d.mode = proxyMode
	d.modeWhy = proxyWhy
	d.answers = nginxAnswers()
	inside := &statement{}
	for _, one := range d.parseBlocks(d.sourceLines(), "#", true) {
		switch one.word(0) {
		case "stream":
			inside.children = append(inside.children, one.children...)
			inside.doubt = cmp.Or(inside.doubt, one.doubt)
			inside.line = one.line
		case "upstream", "server":
			inside.children = append(inside.children, one)
		default:
			n.answer(one.line, "file", one.word(0))
			n.empty = cmp.Or(n.empty, map[string]string{"http": "it has only an http block, and vipd does not read HTTP", "include": emptyIncludes}[one.word(0)])
		}
	}
	n.stream(inside)
	return nil
}

// stream reads the statements in a stream block.
func (n *nginx) stream(block *statement) {
	outer := &statement{line: block.line, doubt: block.doubt}
	var servers []*nginxServer
	for _, one := range block.children {
		switch one.word(0) {
		case "upstream":
			n.upstreams[one.word(1)] = one
		case "server":
			servers = append(servers, n.newServer(one))
		case "include", "map", "geo", "split_clients", "limit_conn_zone", "limit_req_zone":
			n.answer(one.line, "stream", one.word(0))
			if one.is("include") {
				n.empty = emptyIncludes
			}
		default:
			outer.children = append(outer.children, one)
		}
	}
	owners := map[listener]*nginxServer{}
	for _, s := range servers {
		for _, g := range s.groups {
			for _, l := range g.listeners {
				key := listener{addr: l.addr, port: l.port, proto: l.proto}
				if first := owners[key]; first != nil {
					first.shared, s.shared = s.block.line, first.block.line
				}
				owners[key] = s
			}
		}
	}
	for _, s := range servers {
		n.serve(s, outer)
	}
	for _, one := range block.children {
		if one.is("upstream") && !n.used[one.word(1)] {
			n.note(one.line, "left out: no server passes connections to it")
		}
	}
}

// nginxTraits are the listen line options that decide whether vipd can serve the line.
type nginxTraits struct{ tls, proxied bool }

// nginxServer is a server block.
type nginxServer struct {
	block  *statement
	groups []bindGroup[nginxTraits]
	pass   *statement
	// shared is the line of another server block with the same address and port, or 0 if there is
	// none.
	shared int
}

func (n *nginx) newServer(block *statement) *nginxServer {
	s := &nginxServer{block: block}
	for _, one := range block.children {
		switch one.word(0) {
		case "listen":
			listeners, traits, err := n.listen(one)
			if err != nil {
				s.groups = groupBy(s.groups, traits, one.line, nil, err)
				continue
			}
			s.groups = groupBy(s.groups, traits, one.line, listeners)
		case "proxy_pass":
			s.pass = one
		}
	}
	if len(s.groups) == 0 {
		s.groups = []bindGroup[nginxTraits]{{line: block.line}}
	}
	return s
}

// serve creates services from a server block.
func (n *nginx) serve(server *nginxServer, outer *statement) {
	block, name := server.block, "server"
	upstream := &statement{line: block.line}
	if server.pass != nil {
		name, upstream = n.target(server.pass)
	}
	settings := slices.DeleteFunc(slices.Concat(outer.children, block.children), func(one *statement) bool { return one.is("listen") })
	doubtful := doubts(outer, block, upstream)
	rules := n.access(block, outer)
	for _, g := range server.groups {
		for _, s := range n.servicesAt(block.line, name, g.listeners, g.failed) {
			n.disableDoubted(s, doubtful)
			n.upstream(s, upstream)
			for _, one := range settings {
				n.setting(s, one)
			}
			n.defaults(s)
			n.restrict(s, rules, true)
			n.refuse(s, server, g, settings)
		}
	}
}

// target returns the name to give the service for a proxy_pass line, and the upstream that the line
// refers to.
func (n *nginx) target(pass *statement) (string, *statement) {
	name := pass.word(1)
	n.used[name] = true
	if upstream := n.upstreams[name]; upstream != nil {
		return name, upstream
	}
	place := strings.TrimSuffix(name, ":$server_port") // an endpoint without a port has the service's port
	if strings.Contains(place, "$") {
		return "server", &statement{line: pass.line}
	}
	return "server-" + place, &statement{line: pass.line, children: []*statement{{words: []string{"server", place}, line: pass.line}}}
}

// defaults sets nginx's default timeouts.
func (n *nginx) defaults(s *service) {
	if len(s.ports) > 0 && s.ports[0].fields()["protocol"] == nil {
		s.settings = defaulted(s.settings, "connect_timeout", "1m")
	}
	s.settings = defaulted(s.settings, "idle_timeout", "10m")
}

// refuse disables a service that would behave differently from the server block.
func (n *nginx) refuse(s *service, server *nginxServer, g bindGroup[nginxTraits], settings []*statement) {
	on := func(name string) (found *statement) {
		for _, one := range settings {
			if one.is(name) {
				found = one // nginx uses the last line
			}
		}
		if found != nil && (found.word(1) == "off" || found.word(1) == "") {
			return nil
		}
		return found
	}
	toTLS := on("proxy_ssl")
	switch {
	case g.traits.tls && toTLS == nil:
		n.disable(s, g.line, "nginx terminates TLS here, but vipd does not: encrypted connections would reach endpoints that expect plaintext")
	case g.traits.tls && on("ssl_verify_client") != nil:
		n.disable(s, g.line, "nginx verifies client certificates, but vipd does not read TLS")
	case !g.traits.tls && toTLS != nil:
		n.disable(s, toTLS.line, "nginx speaks TLS with the endpoints, but vipd does not: plaintext connections would reach endpoints that expect TLS")
	}
	if g.traits.proxied {
		n.disable(s, g.line, noPROXY)
	}
	if server.shared > 0 {
		n.disable(s, server.block.line, "the server on line %d has the same address and port: nginx chooses by server_name, but vipd does not read TLS. Give each name its own VIP", server.shared)
	}
	for _, one := range settings {
		if word := one.word(0); strings.Contains(word, "_by_lua") || word == "js_access" || word == "js_preread" || word == "js_filter" {
			n.disable(s, one.line, "a program decides about connections here, but vipd would not run it")
		}
	}
	if pass := server.pass; pass == nil {
		n.disable(s, server.block.line, "it has no proxy_pass")
	} else if len(s.endpoints) == 0 && strings.Contains(pass.word(1), "$") {
		n.disable(s, pass.line, noRules)
	}
}

// access returns the client rules. A server without rules inherits the enclosing block's rules.
func (n *nginx) access(block, outer *statement) (rules []accessRule) {
	isRule := func(one *statement) bool { return one.is("allow") || one.is("deny") }
	lines := block.children
	if !slices.ContainsFunc(lines, isRule) {
		lines = outer.children
	}
	for _, one := range lines {
		if !isRule(one) {
			continue
		}
		r := accessRule{line: one.line, accept: one.is("allow"), clients: everyone()}
		if one.word(1) != "all" {
			clients, ok := parseNetworks(one.words[1:])
			r.clients, r.unknown = clients, !ok && one.word(1) != "unix:"
		}
		rules = append(rules, r)
	}
	return rules
}

// listen reads a listen line.
func (n *nginx) listen(one *statement) ([]listener, nginxTraits, error) {
	place, options := one.word(1), one.rest(2)
	if strings.HasPrefix(place, "unix:") {
		return nil, nginxTraits{}, n.errorf(one.line, "vipd listens on addresses, not on Unix sockets")
	}
	protocol, traits := balancer.TCP, nginxTraits{}
	for _, o := range options {
		name, _, _ := strings.Cut(o, "=")
		switch {
		case o == "udp":
			protocol = balancer.UDP
		case o == "ssl":
			traits.tls = true
		case o == "proxy_protocol":
			traits.proxied = true
		case !slices.Contains(strings.Fields(harmlessListen), name):
			n.note(one.line, "%s: "+noEquivalent, o)
		}
	}
	host, ports := splitPort(place)
	if ports == "" && !strings.ContainsAny(host, ".:") {
		host, ports = "", host
	}
	listeners, err := n.listeners(listener{proto: protocol, line: one.line}, host, ports, "listen", true, slices.Contains(options, "ipv6only=off"))
	return listeners, traits, err
}

// harmlessListen lists options of a listen line that need no equivalent in vipd.
const harmlessListen = "reuseport backlog ipv6only so_keepalive bind default_server rcvbuf sndbuf fastopen deferred accept_filter multipath"

func (n *nginx) upstream(s *service, block *statement) {
	var ramps []ramp
	for _, one := range block.children {
		switch one.word(0) {
		case "server":
			if n.endpointOf(s, one) {
				ramps = append(ramps, ramp{line: one.line, text: option(one.rest(2), "slow_start"), unit: time.Second})
			}
		case "least_conn":
			s.set(one.line, "scheduler", "wlc")
		case "hash":
			scheduler := "sh"
			if one.word(2) == "consistent" {
				scheduler = "mh"
			}
			s.set(one.line, "scheduler", scheduler)
			if one.word(1) != "$remote_addr" && one.word(1) != "$binary_remote_addr" {
				n.note(one.line, "the nearest setting is scheduler = %q, which uses only the client's address", scheduler)
			}
		case "random":
			s.set(one.line, "scheduler", "random")
			if len(one.words) > 1 {
				n.schedule(s, one.line, scheduling{"wlc", "the nearest setting is scheduler = \"wlc\", which compares all endpoints instead of two"})
			}
		case "least_time":
			n.schedule(s, one.line, scheduling{"wlc", "vipd does not measure answers; the nearest setting is scheduler = \"wlc\""})
		case "zone", "resolver", "state":
			continue // these concern shared memory and names inside nginx
		default:
			if strings.Contains(one.word(0), "_by_lua") {
				n.disable(s, one.line, "a program chooses the server here, but vipd would not run it")
				continue
			}
			n.note(one.line, noEquivalent)
		}
	}
	n.slowStart(s, ramps)
}

// option returns VALUE if words contains NAME=VALUE. Otherwise it returns "".
func option(words []string, name string) string {
	for _, w := range words {
		if value, found := strings.CutPrefix(w, name+"="); found {
			return value
		}
	}
	return ""
}

// endpointOf adds the endpoint for a server line in an upstream, and reports whether it has an
// address.
func (n *nginx) endpointOf(s *service, one *statement) bool {
	host, portText := splitPort(one.word(1))
	if host == "unix" {
		n.note(one.line, "left out: endpoints have addresses, not Unix sockets")
		return false
	}
	fields := n.endpointAt(s, one.line, host, portText)
	if fields == nil {
		return false
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
			continue // upstream compares the value with the other servers
		case "max_fails", "fail_timeout":
			n.note(one.line, "%s: if a connection attempt fails, vipd tries the next endpoint; a health table detects failures before connections fail", o)
		default:
			n.note(one.line, "%s: "+noEquivalent, o)
		}
	}
	return true
}

// setting converts a line in a server or stream block that no other function converts.
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

// health converts NGINX Plus's health_check.
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
			n.note(one.line, "%s: the nearest settings are send and expect in the health table", o)
		}
	}
	n.checkTimes(s, t)
	s.check(one.line, "fall", fall)
	s.check(one.line, "rise", rise)
}
