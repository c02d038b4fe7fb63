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

// gobetween is a configuration of gobetween while it is read.
type gobetween struct {
	*draft
	doc *tomlfile.Document
}

// table is a table of gobetween's configuration, and the path that leads to it.
type table struct {
	path   string
	fields map[string]any
}

// under returns the table of the name in t; an empty one where there is none.
func (t table) under(name string) table {
	fields, _ := t.fields[name].(map[string]any)
	return table{decode.Join(t.path, name), fields}
}

// text is a field that is a string or a number, as text; "" where it is not there.
func (t table) text(name string) string {
	if v, there := t.fields[name]; there {
		return fmt.Sprint(v)
	}
	return ""
}

// gobetweenAnswers are about what gobetween has and vipd has not.
func gobetweenAnswers() []answer {
	return []answer{
		{"file", "servers defaults", ""},
		{"file", "logging api metrics profiler", "a setting of the process: vipd logs to the journal, and has [api] http for metrics"},
		{"file", "acme", "vipd does not end TLS; the endpoints need the certificates"},
		{"", "bind client_idle_timeout backend_idle_timeout backend_connection_timeout", ""},
		{"", "tls backends_tls", "vipd does not speak TLS; connections pass as the client sends them"},
		{"", "sni", "vipd does not read TLS; give each name a separate VIP and service"},
	}
}

func readGobetween(d *draft) error {
	doc, problems := tomlfile.Parse(d.file, []byte(strings.Join(d.lines, "\n")))
	if doc == nil {
		return d.errorf(max(1, problems[0].Origin.Line), "%s", problems[0].Text)
	}
	g := &gobetween{draft: d, doc: doc}
	d.mode, d.modeWhy, d.answers = proxyMode, proxyWhy, gobetweenAnswers()
	root := table{"", doc.Tree()}
	for _, name := range slices.Sorted(maps.Keys(root.fields)) {
		g.answer(g.line(root, name), "file", name)
	}
	servers := root.under("servers")
	names := slices.SortedFunc(maps.Keys(servers.fields), func(a, b string) int {
		return g.line(servers, a) - g.line(servers, b)
	})
	for _, name := range names {
		t := servers.under(name)
		line := max(1, g.doc.Where(t.path).Line)
		if err := g.spend(line, len(t.fields)); err != nil {
			return err
		}
		if err := g.server(name, t, root.under("defaults")); err != nil {
			return err
		}
	}
	return nil
}

func (g *gobetween) line(t table, name string) int {
	return max(1, g.doc.Where(decode.Join(t.path, name)).Line)
}

func (g *gobetween) server(name string, t, defaults table) error {
	line := g.line(t, "bind")
	host, portText := splitPort(t.text("bind"))
	protocol := balancer.TCP
	if t.text("protocol") == "udp" {
		protocol = balancer.UDP
	}
	listeners, err := g.listeners(listener{proto: protocol, line: line}, host, portText, "bind", true, true)
	if err != nil {
		return err
	}
	s := g.spread(max(1, g.doc.Where(t.path).Line), name, listeners)[0]
	for _, field := range slices.Sorted(maps.Keys(t.fields)) {
		g.field(s, t, field)
	}
	g.idle(s, t, defaults)
	return nil
}

func (g *gobetween) field(s *service, t table, name string) {
	line, value := g.line(t, name), t.text(name)
	switch name {
	case "protocol":
		if value == "tls" {
			g.note(line, noTLSEnd)
		}
	case "balance":
		scheduler, known := map[string]string{"weight": "wrr", "roundrobin": "rr", "leastconn": "lc", "iphash": "sh", "iphash1": "mh"}[value]
		if !known {
			g.note(line, "vipd has no such balance; nearest is scheduler = \"lc\"")
			scheduler = "lc"
		}
		s.set(line, "scheduler", scheduler)
	case "max_connections":
		if value != "0" {
			g.note(line, nearBound)
		}
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

// idle sets the times of connections, those of [defaults] where the server has none.
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

func (g *gobetween) access(s *service, t table) {
	rules, _ := t.fields["rules"].([]any)
	var allowed []string
	for _, r := range rules {
		words := strings.Fields(fmt.Sprint(r))
		if len(words) != 2 || words[0] != "allow" {
			g.note(g.line(t, "rules"), "nearest to %q is source_ranges, the networks that may connect", r)
			continue
		}
		allowed = append(allowed, words[1])
	}
	if t.text("default") == "deny" && len(allowed) > 0 {
		s.set(g.line(t, "rules"), "source_ranges", prefixes(allowed))
	} else if t.text("default") == "deny" {
		s.set(g.line(t, "default"), "source_ranges", prefixes([]string{"127.0.0.1/32", "::1/128"}))
		g.note(g.line(t, "default"), "the origin lets no client connect; here only programs of the host itself may")
	}
}

// discovery reads the static list of endpoints.
func (g *gobetween) discovery(s *service, t table) {
	if kind := t.text("kind"); kind != "static" {
		g.note(g.line(t, "kind"), "vipd asks no discovery %q; endpoints join with \"vipctl register\" or a tool that writes them to etcd", kind)
		return
	}
	list, _ := t.fields["static_list"].([]any)
	for i, each := range list {
		line := max(1, g.doc.Where(fmt.Sprintf("%s[%d]", decode.Join(t.path, "static_list"), i)).Line)
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
			switch {
			case name == "weight":
				g.amount(fields, line, name, "weight", value)
			case name == "priority" && number(value) > 1:
				fields["backup"] = true
				g.note(line, "%s: backup = true: endpoints have two ranks, backups serve while no other is up", option)
			case name == "priority":
			default:
				g.note(line, "%s: "+noEquivalent, option)
			}
		}
	}
}

func (g *gobetween) health(s *service, t table) {
	kind := t.text("kind")
	line := g.line(t, "kind")
	switch kind {
	case "none", "":
		return
	case "ping":
		s.check(line, "type", "tcp") // a connection, in gobetween, too
	case "exec":
		s.check(line, "type", "exec")
		g.note(g.line(t, "exec_command"), "a program passes by its exit status 0, not by its output; it has the endpoint in VIPD_ADDRESS and VIPD_PORT")
		s.check(g.line(t, "exec_command"), "command", []any{t.text("exec_command")})
	case "probe":
		g.probe(s, t)
	default:
		s.check(line, "type", "tcp")
		g.note(line, "vipd has no such check; this one is of type tcp")
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

// order keeps type first, and the rest sorted: fields come from a map.
func order(name string) string {
	if name == "type" {
		return ""
	}
	return name
}

// probe reads a check that sends and expects text.
func (g *gobetween) probe(s *service, t table) {
	kind := "tcp"
	if t.text("probe_protocol") == "udp" {
		kind = "udp"
	} else if t.text("probe_protocol") == "tls" {
		g.note(g.line(t, "probe_protocol"), "checks of type tcp do not speak TLS; nearest is type https")
	}
	s.check(g.line(t, "kind"), "type", kind)
	if text := t.text("probe_send"); text != "" {
		s.check(g.line(t, "probe_send"), "send", text)
	}
	if text := t.text("probe_recv"); text != "" {
		s.check(g.line(t, "probe_recv"), "expect", text)
		if t.text("probe_strategy") == "regexp" {
			g.note(g.line(t, "probe_strategy"), "expect is a text that the answer has, not a pattern")
		}
	}
}
