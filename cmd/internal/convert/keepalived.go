package convert

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"time"

	"vipd/balancer"
)

// keepalived is a file of keepalived while it is read.
type keepalived struct {
	*draft
	groups map[string]*statement
	// variables are those of lines such as $NAME=value.
	variables map[string]string
}

// keepalivedAnswers are about what keepalived has and vipd has not.
func keepalivedAnswers() []answer {
	return []answer{
		{"file", "virtual_server_group", ""},
		{"file", "vrrp_sync_group vrrp_script vrrp_track_process static_ipaddress static_routes static_rules linkbeat_use_polling " +
			"track_file vrrp_track_file bfd_instance net_namespace global_defs garp_group track_bfd", "stays with keepalived; vipd needs none of it"},
		{"file", "SSL", "nearest are ca_file, cert_file and key_file in the health table of each service"},
		// Read elsewhere, or what vipd does anyway: a failing endpoint keeps its connections, and counts once it was checked.
		{"", "protocol sorry_server inhibit_on_failure sorry_server_inhibit alpha warmup persistence_engine virtualhost", ""},
		{"", "quorum_up quorum_down notify_up notify_down smtp_alert", "nearest is [hooks] on_health, one program for all services, or an alert on vipd's metrics"},
		{"", "ha_suspend", "vipd checks endpoints whether or not this host has the VIP"},
		{"", "ops", "nearest is a short udp_timeout in [ipvs]: vipd keeps flows of UDP on their endpoint"},
		{"check", "connect_ip", "checks go to the endpoint's own address; nearest is a check of type exec"},
		{"check", "bind_if bind_port", "nearest is source, the address that checks come from"},
		// Read with the kind of check, or without an effect in vipd.
		{"check", "url type name helo_name misc_path misc_timeout misc_dynamic user payload require_reply min_reply_length max_reply_length " +
			"enable_sni alpha warmup log_all_failures fast_recovery http_protocol tls_compliant host", ""},
	}
}

func readKeepalived(d *draft) error {
	nodes, err := d.parseBlocks("#!", false)
	if err != nil {
		return err
	}
	d.answers = keepalivedAnswers()
	k := &keepalived{draft: d, groups: map[string]*statement{}, variables: map[string]string{}}
	nodes = k.substituted(nodes)
	for _, n := range nodes {
		if n.word(0) == "virtual_server_group" {
			k.groups[n.word(1)] = n
		}
	}
	for _, n := range nodes {
		if err := k.top(n); err != nil {
			return err
		}
	}
	return nil
}

// substituted replaces variables by their values, and takes definitions and conditional lines out.
func (k *keepalived) substituted(nodes []*statement) []*statement {
	var out []*statement
	for _, n := range nodes {
		for i, word := range n.words {
			n.words[i] = k.expanded(word)
		}
		first := n.word(0)
		switch name, value, defines := strings.Cut(strings.TrimPrefix(first, "$"), "="); {
		case strings.HasPrefix(first, "$") && defines:
			k.variables[name] = strings.Join(append([]string{value}, n.rest(1)...), " ")
			continue
		case strings.HasPrefix(first, "@"):
			k.note(n.line, "left out: this line is for some hosts only; convert a file for each host")
			continue
		case first == "include" || first == "includer" || strings.HasPrefix(first, "include_"):
			k.note(n.line, "not read: convert the included file as well")
			continue
		}
		n.children = k.substituted(n.children)
		out = append(out, n)
	}
	return out
}

// expanded replaces $NAME and ${NAME} in a word. Values do not expand further. If values of values grow too large, nothing replaces a
// name, and fitAll returns the error.
func (k *keepalived) expanded(word string) string {
	if len(k.variables) == 0 {
		return word
	}
	return os.Expand(word, func(name string) string {
		if value, known := k.variables[name]; known {
			if k.spend(1, 1+len(value)/64) != nil {
				return ""
			}
			return value
		}
		return "$" + name
	})
}

// top reads a statement outside of blocks.
func (k *keepalived) top(n *statement) error {
	switch first := n.word(0); first {
	case "virtual_server":
		return k.virtualServer(n)
	case "vrrp_instance":
		k.unbound = n.line
		k.note(n.line, "stays with keepalived, which holds %s; bind = false lets vipd use the addresses as they come and go", k.held(n))
	default:
		k.answer(n.line, "file", first)
	}
	return nil
}

// held lists the addresses of a vrrp_instance.
func (k *keepalived) held(n *statement) string {
	var out []string
	for _, c := range n.children {
		if strings.HasPrefix(c.word(0), "virtual_ipaddress") {
			for _, a := range c.children {
				out = append(out, a.word(0))
			}
		}
	}
	if len(out) == 0 {
		return "its addresses"
	}
	return strings.Join(out, ", ")
}

func (k *keepalived) virtualServer(n *statement) error {
	proto := balancer.TCP
	for _, c := range n.children {
		if c.word(0) == "protocol" {
			proto = balancer.Protocol(strings.ToLower(c.word(1)))
		}
	}
	listeners, name, err := k.listeners(n, proto)
	if err != nil {
		return err
	}
	for _, s := range k.spread(n.line, name, listeners) {
		if err := k.spend(n.line, n.size()); err != nil {
			return err
		}
		k.fill(s, n)
	}
	return nil
}

// listeners are the addresses and ports of a virtual_server, and a name for it.
func (k *keepalived) listeners(n *statement, proto balancer.Protocol) (out []listener, name string, err error) {
	entries, name := []*statement{{words: n.rest(1), line: n.line}}, "vs-"+n.word(1)+"-"+n.word(2)
	if proto != balancer.TCP {
		name += "-" + string(proto)
	}
	if n.word(1) == "group" {
		group := k.groups[n.word(2)]
		if group == nil {
			return nil, "", k.errorf(n.line, "there is no virtual_server_group %q in this file; convert a file that has it", n.word(2))
		}
		entries, name = group.children, n.word(2)
	}
	for _, e := range entries {
		if err := k.spend(e.line, 1); err != nil {
			return nil, "", err
		}
		if e.word(0) == "fwmark" {
			k.note(e.line, noMarks)
			continue
		}
		addresses, err := addressRange(e.word(0))
		if err != nil {
			return nil, "", k.errorf(e.line, "%v: write an address or a range of at most %d, and behind it a port", err, maxRange)
		}
		if e.word(1) == "" || e.word(1) == "0" {
			k.note(e.line, noPorts)
			continue
		}
		port, err := parsePort(e.word(1))
		if err != nil {
			return nil, "", k.errorf(e.line, "%v", err)
		}
		if err := k.spend(e.line, len(addresses)); err != nil {
			return nil, "", err
		}
		for _, a := range addresses {
			out = append(out, listener{a, port, proto, e.line})
		}
	}
	return out, name, nil
}

// maxRange bounds the addresses of a range.
const maxRange = 4096

// addressRange reads an address, A.B.C.D-E, A.B.C.D-E.F.G.H or A.B.C.D/N, and the same of IPv6.
func addressRange(text string) ([]netip.Addr, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return addressesFrom(prefix.Masked().Addr(), prefix.Contains, text)
	}
	first, last, isRange := strings.Cut(text, "-")
	from, err := parseAddr(first)
	if err != nil || !isRange {
		return []netip.Addr{from}, err
	}
	if i := strings.LastIndexAny(first, ".:"); !strings.ContainsAny(last, ".:") {
		last = first[:i+1] + last
	}
	to, err := parseAddr(last)
	if err != nil {
		return nil, err
	}
	return addressesFrom(from, func(a netip.Addr) bool { return a.Is4() == to.Is4() && a.Compare(to) <= 0 }, text)
}

// addressesFrom lists the addresses of a range, which text writes.
func addressesFrom(from netip.Addr, within func(netip.Addr) bool, text string) (all []netip.Addr, err error) {
	for a := from; within(a); a = a.Next() {
		if all = append(all, a); len(all) > maxRange {
			return nil, fmt.Errorf("the range %q is too large", text)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the range %q has no addresses", plain(text))
	}
	return all, nil
}

// fill sets what a virtual_server says in its block.
func (k *keepalived) fill(s *service, n *statement) {
	var servers []*statement
	inherited := checkSettings{}
	for _, c := range n.children {
		switch first := c.word(0); {
		case first == "real_server":
			servers = append(servers, c)
		case inherited.take(c):
		default:
			k.setting(s, c)
		}
	}
	s.settings = defaulted(s.settings, "scheduler", "wlc")
	var checkers []*checker
	for _, r := range servers {
		if fields := k.endpointAt(s, r.line, r.word(1), r.word(2)); fields != nil {
			checkers = append(checkers, k.realServer(s, r, fields, inherited))
		}
	}
	var sorry []int
	for _, c := range n.children {
		if c.word(0) != "sorry_server" {
			continue
		}
		if fields := k.endpointAt(s, c.line, c.word(1), c.word(2)); fields != nil {
			fields["backup"] = true
			sorry = append(sorry, c.line)
		}
	}
	k.forwardPorts(s)
	k.health(s, checkers)
	for _, line := range sorry {
		if len(s.health) > 0 {
			k.note(line, "is checked as the real servers are, and gets clients while it passes that; in the origin it has no check")
		}
	}
}

// setting reads a statement of a virtual_server that is neither a server nor about checks.
func (k *keepalived) setting(s *service, n *statement) {
	switch value := n.word(1); n.word(0) {
	case "lb_algo", "lvs_sched":
		k.scheduler(s, n.line, value)
	case "lb_kind", "lvs_method":
		k.forward(s, n)
	case "persistence_timeout":
		timeout := usualKeepalivedPersistence
		if t, err := parseSpan(value, time.Second); err == nil && t > 0 {
			timeout = t
		}
		s.persistent(n.line, timeout)
	case "persistence_granularity":
		k.granularity(n.line)
	case "quorum", "hysteresis":
		if value != "1" && n.word(0) == "quorum" || value != "0" && n.word(0) == "hysteresis" {
			k.note(n.line, "vipd serves while one endpoint is up; nearest are an alert on vipd_endpoints and panic_threshold in the health table")
		}
	default:
		k.answer(n.line, "", n.word(0))
	}
}

// forward reads lb_kind.
func (k *keepalived) forward(s *service, n *statement) {
	way, known := map[string]string{"NAT": "nat", "DR": "dr", "TUN": "tunnel"}[strings.ToUpper(n.word(1))]
	if !known {
		k.note(n.line, "vipd can't forward like that; here forward is \"nat\"")
		return
	}
	s.set(n.line, "forward", way)
	if len(n.words) > 2 {
		k.note(n.line, "tunnels are IP in IP; other types have no equivalent")
	}
}

// realServer reads the block of an endpoint, and returns its first checker; nil where it has none.
func (k *keepalived) realServer(s *service, n *statement, fields map[string]any, inherited checkSettings) (first *checker) {
	own := maps.Clone(inherited)
	for _, c := range n.children {
		own.take(c)
	}
	for _, c := range n.children {
		switch name := c.word(0); {
		case own.take(c), name == "inhibit_on_failure", name == "alpha", name == "warmup":
		case name == "weight" || name == "uthreshold":
			field := map[string]string{"weight": "weight", "uthreshold": "max_connections"}[name]
			k.amount(fields, c.line, name, field, c.word(1))
		case name == "lthreshold":
			k.note(c.line, "vipd uses an endpoint again as soon as it is below max_connections")
		case name == "lvs_method" || name == "lb_kind":
			k.note(c.line, "forward is the same for all endpoints of a service")
		case strings.HasSuffix(name, "_CHECK") || strings.HasSuffix(name, "_GET"):
			if first != nil {
				k.note(c.line, "endpoints have one check; this is the second one. Nearest is a check of type exec that does both")
				continue
			}
			first = &checker{server: n.word(1), root: c, settings: maps.Clone(own)}
		default:
			k.setting(s, c)
		}
	}
	return first
}
