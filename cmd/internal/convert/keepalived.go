package convert

import (
	"fmt"
	"net/netip"
	"strings"

	"vipd/balancer"
)

// keepalived is a keepalived configuration that is being converted.
type keepalived struct {
	*draft
	servers map[string]*statement // the virtual server groups
	// version is the VRRP version for instances that don't set one, or 0 for keepalived's default.
	version int
	// held maps each VIP to its group's name.
	held map[netip.Addr]string
}

// keepalivedAnswers returns notes about keepalived features that vipd does not have.
func keepalivedAnswers() []answer {
	return []answer{
		{"file", "virtual_server_group", ""},
		{"file", "global_defs linkbeat_use_polling garp_group net_namespace", "vipd does not need it"},
		{"file", "static_ipaddress static_routes static_rules", "vipd does not set it; add it to the host's network configuration"},
		{"file", "vrrp_script vrrp_track_process track_file vrrp_track_file bfd_instance track_bfd", nearCondition},
		{"file", "vrrp_sync_group", "VIPs of one [ownership.vrrp.NAME] move together: when all hosts run vipd, write the VIPs of these instances into one group"},
		{"file", "SSL", "the nearest settings are ca_file, cert_file and key_file in each service's health table"},
		// These are read elsewhere, or describe vipd's usual behavior: a failing endpoint keeps its
		// connections, and a new endpoint serves after its first check.
		{"", "protocol sorry_server inhibit_on_failure sorry_server_inhibit alpha warmup virtualhost ip_family", ""},
		{"", "quorum_up quorum_down notify_up notify_down smtp_alert", nearHook},
		{"", "failover_threshold", "vipd uses backups while no other endpoint is up"},
		{"", "ha_suspend", "vipd checks endpoints whether or not this host has the VIP"},
		{"", "ops", "the nearest setting is a short udp_timeout in [ipvs]: vipd keeps UDP flows on their endpoint"},
		{"check", "bind_if bind_port", "the nearest setting is source, the address from which checks connect"},
		// These are read with the kind of check, or have no effect in vipd.
		{"check", "url type name helo_name misc_path misc_timeout misc_dynamic user payload require_reply min_reply_length max_reply_length " +
			"enable_sni alpha warmup log_all_failures fast_recovery http_protocol tls_compliant host", ""},
	}
}

const (
	nearHook      = "the nearest equivalent is [hooks] on_health, one program for all services, or an alert on vipd's metrics"
	nearCondition = "a host without usable endpoints can't own a service's VIP (require in [vips.\"ADDRESS\"]). For other conditions, the nearest equivalent is a service with a check of type exec"
	nearWithdraw  = "the nearest setting is withdraw = \"no_endpoint\" in [vips.\"ADDRESS\"], which removes the VIP while no endpoint is usable"
)

func readKeepalived(d *draft) error {
	d.answers = append(keepalivedAnswers(), keepalivedInstanceAnswers()...)
	k := &keepalived{draft: d, servers: map[string]*statement{}, held: map[netip.Addr]string{}}
	nodes := d.parseBlocks(d.keepalivedLines(), "", false)
	for _, n := range nodes {
		switch n.word(0) {
		case "virtual_server_group":
			k.servers[n.word(1)] = n
		case "global_defs":
			k.globals(n)
		}
	}
	for _, n := range nodes {
		k.top(n)
	}
	return nil
}

// includes reports whether a statement includes a file.
func includes(n *statement) bool {
	first := n.word(0)
	return first == "include" || first == "includer" || strings.HasPrefix(first, "include_")
}

// top reads a statement at the top level.
func (k *keepalived) top(n *statement) {
	if includes(n) {
		k.note(n.line, "not read: convert the included file as well")
		k.empty = emptyIncludes
		return
	}
	switch first := n.word(0); first {
	case "virtual_server":
		k.virtualServer(n)
	case "vrrp_instance":
		k.vrrpInstance(n)
	default:
		k.answer(n.line, "file", first)
	}
}

// globals reads the defaults for instances from global_defs.
func (k *keepalived) globals(n *statement) {
	for _, c := range n.children {
		switch word := c.word(0); {
		case word == "vrrp_version" && (c.word(1) == "2" || c.word(1) == "3"):
			k.version = int(number(c.word(1)))
		case strings.HasPrefix(word, "vrrp_"):
			k.answer(c.line, "vrrp", strings.TrimPrefix(word, "vrrp_"))
		}
	}
}

func (k *keepalived) virtualServer(n *statement) {
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
		group := k.servers[name]
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
		k.disableDoubted(s, doubtful)
		k.fill(s, n)
	}
}

// listenersOf reads the addresses and the port of a virtual_server, or of a line in a group.
func (k *keepalived) listenersOf(e *statement, proto balancer.Protocol) ([]listener, error) {
	if e.word(0) == "fwmark" {
		return nil, k.errorf(e.line, noMarks)
	}
	addresses, err := addressRange(e.word(0))
	if err != nil {
		return nil, k.errorf(e.line, "%v: write an address or a range of at most %d addresses, followed by a port", err, maxRange)
	}
	if e.word(1) == "" || e.word(1) == "0" {
		return nil, k.errorf(e.line, noPorts)
	}
	port, err := parsePort(e.word(1))
	if err != nil {
		return nil, k.errorf(e.line, "%v", err)
	}
	out := make([]listener, len(addresses))
	for i, a := range addresses {
		out[i] = listener{a, port, proto, e.line}
	}
	return out, nil
}

// maxRange is the maximum number of addresses in a range.
const maxRange = 4096

// addressRange reads an address, A.B.C.D-E, A.B.C.D-E.F.G.H or A.B.C.D/N, or the same forms with
// IPv6 addresses.
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

// addressesFrom lists consecutive addresses, starting with from, while within returns true. text is
// the range as written, for errors.
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
