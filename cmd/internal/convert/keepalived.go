package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"vipd/balancer"
)

// keepalived is a configuration of keepalived while it is read.
type keepalived struct {
	*draft
	groups map[string]*statement
}

// keepalivedAnswers are about features of keepalived that vipd lacks.
func keepalivedAnswers() []answer {
	return []answer{
		{"file", "virtual_server_group", ""},
		{"file", "vrrp_sync_group vrrp_script vrrp_track_process static_ipaddress static_routes static_rules linkbeat_use_polling " +
			"track_file vrrp_track_file bfd_instance net_namespace global_defs garp_group track_bfd", "stays with keepalived; vipd needs none of it"},
		{"file", "SSL", "nearest are ca_file, cert_file and key_file in the health table of each service"},
		// These are read elsewhere, or describe vipd's usual behavior: a failing endpoint keeps its
		// connections, and counts after its first check.
		{"", "protocol sorry_server inhibit_on_failure sorry_server_inhibit alpha warmup virtualhost ip_family", ""},
		{"", "quorum_up quorum_down notify_up notify_down smtp_alert", nearHook},
		{"", "failover_threshold", "vipd uses backups while no other endpoint is up"},
		{"", "ha_suspend", "vipd checks endpoints whether or not this host has the VIP"},
		{"", "ops", "nearest is a short udp_timeout in [ipvs]: vipd keeps flows of UDP on their endpoint"},
		{"check", "bind_if bind_port", "nearest is source, the address that checks come from"},
		// Read with the kind of check, or without an effect in vipd.
		{"check", "url type name helo_name misc_path misc_timeout misc_dynamic user payload require_reply min_reply_length max_reply_length " +
			"enable_sni alpha warmup log_all_failures fast_recovery http_protocol tls_compliant host", ""},
	}
}

const (
	nearHook     = "nearest is [hooks] on_health, one program for all services, or an alert on vipd's metrics"
	nearWithdraw = "nearest is withdraw = \"no_endpoint\" in [vips.\"ADDRESS\"], which removes the VIP while no endpoint is usable"
)

func readKeepalived(d *draft) error {
	d.answers = keepalivedAnswers()
	k := &keepalived{draft: d, groups: map[string]*statement{}}
	nodes := d.parseBlocks(d.keepalivedLines(), "", false)
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

// includes reports whether a statement includes a file.
func includes(n *statement) bool {
	first := n.word(0)
	return first == "include" || first == "includer" || strings.HasPrefix(first, "include_")
}

// top reads a statement outside of blocks.
func (k *keepalived) top(n *statement) error {
	if includes(n) {
		k.note(n.line, "not read: convert the included file as well")
		k.empty = emptyIncludes
		return nil
	}
	switch first := n.word(0); first {
	case "virtual_server":
		return k.virtualServer(n)
	case "vrrp_instance":
		k.unbound = n.line
		k.empty = cmp.Or(k.empty, "its VRRP instances stay with keepalived, and it has no virtual_server")
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
	name := "vs-" + n.word(1) + "-" + n.word(2)
	if proto != balancer.TCP {
		name += "-" + string(proto)
	}
	entries := []*statement{{words: n.rest(1), line: n.line, doubt: n.doubt}}
	var failed []error
	if n.word(1) == "group" {
		name = n.word(2)
		group := k.groups[name]
		if group == nil {
			failed = append(failed, k.errorf(n.line, "there is no virtual_server_group %q in this file; convert a file that has it", plain(name)))
			group = &statement{}
		}
		entries = group.children
	}
	var listeners []listener
	for _, e := range entries {
		more, err := k.listenersOf(e, proto)
		if err != nil {
			failed = append(failed, err)
		}
		listeners = append(listeners, more...)
	}
	doubtful := doubts(append(entries, n)...)
	for _, s := range k.servicesAt(n.line, name, listeners, failed) {
		if err := k.spend(n.line, n.size()); err != nil {
			return err
		}
		k.disableDoubted(s, doubtful)
		k.fill(s, n)
	}
	return nil
}

// listenersOf reads the addresses and the port of a virtual_server, or of a line of a group.
func (k *keepalived) listenersOf(e *statement, proto balancer.Protocol) ([]listener, error) {
	if e.word(0) == "fwmark" {
		return nil, k.errorf(e.line, noMarks)
	}
	addresses, err := addressRange(e.word(0))
	if err != nil {
		return nil, k.errorf(e.line, "%v: write an address or a range of at most %d, and a port after it", err, maxRange)
	}
	if e.word(1) == "" || e.word(1) == "0" {
		return nil, k.errorf(e.line, noPorts)
	}
	port, err := parsePort(e.word(1))
	if err != nil {
		return nil, k.errorf(e.line, "%v", err)
	}
	if err := k.spend(e.line, 1+len(addresses)); err != nil {
		return nil, err
	}
	out := make([]listener, len(addresses))
	for i, a := range addresses {
		out[i] = listener{a, port, proto, e.line}
	}
	return out, nil
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
