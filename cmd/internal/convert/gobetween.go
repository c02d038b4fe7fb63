package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/store/tomlfile"
)

// gobetween is a gobetween configuration that is being converted.
type gobetween struct {
	*draft
	// lines returns the line on which a path occurs, or 0 if it is unknown.
	lines func(path string) int
}

// table is a table in gobetween's configuration, with its path.
type table struct {
	path   string
	fields map[string]any
}

// under returns the table called name in t, or an empty table if there is none.
func (t table) under(name string) table {
	fields, _ := t.fields[name].(map[string]any)
	return table{decode.Join(t.path, name), fields}
}

// text returns the field's string or number as text, or "" if the field is missing.
func (t table) text(name string) string {
	if v, found := t.fields[name]; found {
		return fmt.Sprint(v)
	}
	return ""
}

// gobetweenAnswers returns notes about gobetween features that vipd does not have.
func gobetweenAnswers() []answer {
	return []answer{
		{"file", "servers defaults", ""},
		{"file", "logging api metrics profiler", "a process setting: vipd logs to the journal, and serves metrics at [api] http"},
		{"file", "acme", "vipd does not terminate TLS; the endpoints need the certificates"},
		{"", "bind protocol max_connections client_idle_timeout backend_idle_timeout backend_connection_timeout backends_tls sni", ""},
		{"", "tls", "vipd does not speak TLS; it forwards connections as clients send them"},
	}
}

func readGobetween(d *draft) error {
	text := strings.Join(d.lines, "\n")
	g := &gobetween{draft: d}
	d.mode = proxyMode
	d.modeWhy = proxyWhy
	d.answers = gobetweenAnswers()
	root := table{}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		tree, lines, err := parseJSON(text)
		if err != nil {
			return d.errorf(lines[""], "is not valid JSON: %v", err)
		}
		root.fields, g.lines = tree, func(path string) int { return lines[path] }
	} else {
		doc, problems := tomlfile.Parse(d.file, []byte(text))
		if doc == nil {
			return d.errorf(max(1, problems[0].Origin.Line), "%s", problems[0].Text)
		}
		root.fields, g.lines = doc.Tree(), func(path string) int { return doc.Where(path).Line }
	}
	for _, name := range slices.Sorted(maps.Keys(root.fields)) {
		g.answer(g.line(root, name), "file", name)
	}
	servers := root.under("servers")
	names := slices.SortedFunc(maps.Keys(servers.fields), func(a, b string) int {
		return g.line(servers, a) - g.line(servers, b)
	})
	for _, name := range names {
		t := servers.under(name)
		g.server(name, t, root.under("defaults"))
	}
	return nil
}

func (g *gobetween) line(t table, name string) int { return g.lineOf(decode.Join(t.path, name)) }

func (g *gobetween) lineOf(path string) int { return max(1, g.lines(path)) }

func (g *gobetween) server(name string, t, defaults table) {
	bind := t.text("bind")
	line := g.line(t, "bind")
	host, portText := splitPort(bind)
	protocol := balancer.TCP
	if t.text("protocol") == "udp" {
		protocol = balancer.UDP
	}
	listeners, err := g.listeners(listener{proto: protocol, line: line}, host, portText, "bind", true, true)
	var failed []error
	if err != nil {
		failed = []error{err}
	}
	s := g.servicesAt(g.lineOf(t.path), name, listeners, failed)[0]
	for _, field := range slices.Sorted(maps.Keys(t.fields)) {
		g.field(s, t, field)
	}
	g.bound(t, defaults)
	g.tls(s, t)
	g.idle(s, t, defaults)
}

// bound adds a note about max_connections in a server's table or in [defaults].
func (g *gobetween) bound(t, defaults table) {
	for _, from := range []table{t, defaults} {
		if text := from.text("max_connections"); text != "" {
			if text != "0" {
				g.note(g.line(from, "max_connections"), nearBound)
			}
			return
		}
	}
}

// tls disables a service if gobetween uses TLS for its connections to clients or endpoints.
func (g *gobetween) tls(s *service, t table) {
	_, toTLS := t.fields["backends_tls"]
	fromTLS := t.text("protocol") == "tls"
	switch {
	case fromTLS && toTLS:
		g.note(g.line(t, "protocol"), noTLSEnd)
	case fromTLS:
		g.disable(s, g.line(t, "protocol"), "gobetween terminates TLS here, but vipd does not: encrypted connections would reach endpoints that expect plaintext")
	case toTLS:
		g.disable(s, g.line(t, "backends_tls"), "gobetween speaks TLS with the endpoints, but vipd does not: plaintext connections would reach endpoints that expect TLS")
	}
	if _, bySNI := t.fields["sni"]; bySNI {
		g.disable(s, g.line(t, "sni"), "gobetween chooses endpoints by SNI, but vipd does not read TLS; give each name its own VIP and service")
	}
}

func (g *gobetween) field(s *service, t table, name string) {
	line, value := g.line(t, name), t.text(name)
	switch name {
	case "balance":
		scheduler, known := map[string]string{"weight": "wrr", "roundrobin": "rr", "leastconn": "lc", "iphash": "sh", "iphash1": "mh"}[value]
		if !known {
			g.note(line, "vipd does not have this balance method; the nearest setting is scheduler = \"lc\"")
			scheduler = "lc"
		}
		s.set(line, "scheduler", scheduler)
	case "access":
		g.access(s, t.under(name))
	case "discovery":
		g.discovery(s, t.under(name))
	case "healthcheck":
		g.health(s, t.under(name))
	case "proxy_protocol":
		s.set(g.line(t.under(name), "version"), "proxy_protocol", "v"+t.under(name).text("version"))
	case "udp":
		if t.under(name).text("max_responses") != "" || t.under(name).text("max_requests") != "" {
			g.note(line, noDatagrams)
		}
	default:
		g.answer(line, "", name)
	}
}

// idle sets the idle timeout. A timeout that is missing from the server table is taken from
// [defaults].
func (g *gobetween) idle(s *service, t, defaults table) {
	at := func(name string) span {
		for _, from := range []table{t, defaults} {
			if text := from.text(name); text != "" {
				t, _ := g.span(g.line(from, name), text, time.Second)
				return t
			}
		}
		return span{}
	}
	if connect := at("backend_connection_timeout"); connect.time > 0 {
		s.set(connect.line, "connect_timeout", seconds(connect.time))
	}
	both := idle{client: at("client_idle_timeout"), server: at("backend_idle_timeout")}
	if shortest := both.shortest(); shortest.time > 0 {
		s.set(shortest.line, "idle_timeout", seconds(shortest.time))
	}
}

// access converts a service's access rules.
func (g *gobetween) access(s *service, t table) {
	list, _ := t.fields["rules"].([]any)
	var rules []accessRule
	for i, each := range list {
		words := strings.Fields(fmt.Sprint(each))
		r := accessRule{line: g.element(t, "rules", i)}
		known := len(words) == 2 && (words[0] == "allow" || words[0] == "deny")
		if known {
			r.accept = words[0] == "allow"
			r.clients, known = parseNetworks(words[1:])
		}
		r.unknown = !known
		rules = append(rules, r)
	}
	accept := t.text("default") != "deny"
	rules = append(rules, accessRule{line: g.line(t, "default"), accept: accept, clients: everyone()})
	g.restrict(s, rules, accept)
}

// element returns the line of an element in a list. If it is unknown, it returns the line of the
// list, or 1 if that is also unknown.
func (g *gobetween) element(t table, list string, i int) int {
	return max(1, g.lines(fmt.Sprintf("%s[%d]", decode.Join(t.path, list), i)), g.lines(decode.Join(t.path, list)))
}

// discovery converts a static list of endpoints. It adds a note about any other kind of discovery.
func (g *gobetween) discovery(s *service, t table) {
	if kind := t.text("kind"); kind != "static" {
		g.note(g.line(t, "kind"), "vipd does not support discovery %q; let endpoints join with \"vipctl register\", or write them to etcd with a tool", kind)
		return
	}
	list, _ := t.fields["static_list"].([]any)
	first := int64(0) // the primary endpoints' priority
	for _, each := range list {
		if p := priority(each); first == 0 || p < first {
			first = p
		}
	}
	for i, each := range list {
		line := g.element(t, "static_list", i)
		words := strings.Fields(fmt.Sprint(each))
		if len(words) == 0 {
			continue
		}
		host, portText := splitPort(words[0])
		fields := g.endpointAt(s, line, host, portText)
		if fields == nil {
			continue
		}
		for _, option := range words[1:] {
			name, value, _ := strings.Cut(option, "=")
			if name == "weight" {
				g.amount(fields, line, name, "weight", value)
			} else if name != "priority" {
				g.note(line, "%s: "+noEquivalent, option)
			}
		}
		if priority(each) > first {
			fields["backup"] = true
			g.note(line, "backup = true: vipd has only two priorities, and backups serve while no other endpoint is up")
		}
	}
}

// priority returns an endpoint's priority. gobetween's default is 1.
func priority(endpoint any) int64 {
	for _, option := range strings.Fields(fmt.Sprint(endpoint)) {
		if text, found := strings.CutPrefix(option, "priority="); found {
			return max(1, number(text))
		}
	}
	return 1
}

func (g *gobetween) health(s *service, t table) {
	kind := t.text("kind")
	line := g.line(t, "kind")
	switch kind {
	case "none", "":
		return
	case "ping":
		s.check(line, "type", "tcp") // gobetween's ping is also a TCP connect
	case "exec":
		s.check(line, "type", "exec")
		// gobetween passes the endpoint to the program as arguments, and compares the program's
		// output.
		script := fmt.Sprintf(`test "$(%s "$VIPD_ADDRESS" "$VIPD_PORT")" = %s`, shellQuote(t.text("exec_command")), shellQuote(t.text("exec_expected_positive_output")))
		s.check(g.line(t, "exec_command"), "command", []any{"/bin/sh", "-c", script})
	case "probe":
		g.probe(s, t)
	default:
		s.check(line, "type", "tcp")
		g.note(line, "vipd does not have this check; the converted check is of type tcp")
	}
	var times timing
	for name, to := range map[string]*span{"interval": &times.interval, "timeout": &times.timeout} {
		if text := t.text(name); text != "" {
			if at, ok := g.span(g.line(t, name), text, time.Second); ok {
				*to = at
			}
		}
	}
	if text := t.text("ping_timeout_duration"); text != "" && times.timeout.line == 0 {
		if d, err := parseSpan(text, time.Second); err == nil {
			times.timeout = span{time: d, line: g.line(t, "ping_timeout_duration")}
		}
	}
	g.checkTimes(s, times)
	for name, field := range map[string]string{"passes": "rise", "fails": "fall"} {
		if n := number(t.text(name)); n > 0 {
			s.check(g.line(t, name), field, n)
		} else {
			s.health = put(s.health, setting{name: field, value: int64(1), why: originDefault})
		}
	}
	slices.SortStableFunc(s.health, func(a, b setting) int { return strings.Compare(order(a.name), order(b.name)) })
}

// order returns a sort key that puts type first, and sorts a map's other fields by name.
func order(name string) string {
	if name == "type" {
		return ""
	}
	return name
}

// probe converts a check that sends and expects text.
func (g *gobetween) probe(s *service, t table) {
	kind := "tcp"
	if t.text("probe_protocol") == "udp" {
		kind = "udp"
	} else if t.text("probe_protocol") == "tls" {
		g.note(g.line(t, "probe_protocol"), "tcp checks do not speak TLS; the nearest type is https")
	}
	s.check(g.line(t, "kind"), "type", kind)
	if text := t.text("probe_send"); text != "" {
		s.check(g.line(t, "probe_send"), "send", text)
	}
	if text := t.text("probe_recv"); text != "" {
		s.check(g.line(t, "probe_recv"), "expect", text)
		if t.text("probe_strategy") == "regexp" {
			g.note(g.line(t, "probe_strategy"), "expect is text that the answer must contain, not a pattern")
		}
	}
}
