package convert

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
)

// keepalivedInstanceAnswers returns notes about words in a vrrp_instance that have no exact
// equivalent.
func keepalivedInstanceAnswers() []answer {
	const (
		announces = "vipd owner announces its VIPs when it acquires them, every announce_every, and when another host claims one of them"
		noRoutes  = "vipd sets no routes or rules with a VIP; the nearest setting is [hooks] on_vip"
	)
	return []answer{
		// These are read elsewhere, or describe vipd's usual behavior.
		{"vrrp", "interface virtual_router_id priority advert_int version nopreempt preempt preempt_delay unicast_src_ip mcast_src_ip unicast_peer authentication " +
			"virtual_ipaddress virtual_ipaddress_excluded down_timer_adverts v3_checksum_as_v2 garp_master_refresh accept native_ipv6 debug skip_check_adv_addr", ""},
		{"vrrp", "state", "left out: each host starts as a backup, and the highest priority owns the group"},
		{"vrrp", "garp_master_delay garp_master_repeat garp_master_refresh_repeat garp_lower_prio_delay garp_lower_prio_repeat garp_interval gna_interval garp_extra_if", announces},
		{"vrrp", "track_script track_process track_file track_bfd", nearCondition},
		{"vrrp", "track_interface", "if an interface that carries adverts or VIPs is down, the host gives its VIPs to other hosts; vipd ignores other interfaces"},
		{"vrrp", "dont_track_primary", "if an interface that carries adverts or VIPs is down, the host gives its VIPs to other hosts"},
		{"vrrp", "notify notify_master notify_backup notify_fault notify_stop notify_deleted notify_master_rx_lower_pri smtp_alert",
			"the nearest setting is [hooks] on_vip, one program for all groups: VIPD_TEXT begins with took, gave, resigned or lost"},
		{"vrrp", "use_vmac use_vmac_addr use_ipvlan vmac_xmit_base", "VIPs use the host's MAC address, as in keepalived without use_vmac"},
		{"vrrp", "virtual_routes virtual_rules promote_secondaries", noRoutes},
		{"vrrp", "lvs_sync_daemon_interface", "vipd does not copy connections to the other host; scheduler = \"mh\" lets both hosts choose the same endpoint"},
		{"vrrp", "no_accept strict_mode", "vipd accepts packets to its VIPs, as keepalived does by default"},
		{"vrrp", "unicast_ttl check_unicast_src unicast_fault_no_peer", "the nearest setting is unicast_ttl in [ownership.vrrp.NAME], the lowest TTL that vipd accepts"},
	}
}

// instance is a vrrp_instance that is being converted.
type instance struct {
	*keepalived
	*vrrpGroup
	n *statement
	// listed holds the VIPs that adverts contain, and excluded holds the VIPs that they omit.
	listed, excluded []netip.Addr
	version          int
}

// vrrpInstance converts a vrrp_instance to a VRRP group.
func (k *keepalived) vrrpInstance(n *statement) {
	in := &instance{keepalived: k, vrrpGroup: k.newGroup(n.line, cmp.Or(n.word(1), "vrrp")), n: n, version: cmp.Or(k.version, 2)}
	for _, doubtful := range doubts(n) {
		in.reasons = append(in.reasons, k.newNote(doubtful.line, "%s", doubtful.doubt))
	}
	for _, c := range n.children {
		in.address(c)
	}
	if slices.ContainsFunc(in.listed, netip.Addr.Is6) {
		in.version = 3 // keepalived's default for IPv6
	}
	if c := in.last("version"); c != nil && (c.word(1) == "2" || c.word(1) == "3") {
		in.version = int(number(c.word(1)))
	}
	for _, c := range n.children {
		in.statement(c)
	}
	in.defaults()
	in.advertise()
}

// advertise writes which VIPs adverts contain if VIPs are excluded, or if the group uses IPv6. An
// IPv6 group may have the same router ID as an IPv4 group.
func (in *instance) advertise() {
	if len(in.listed) == 0 || len(in.excluded) == 0 && in.listed[0].Is4() {
		return
	}
	var all []any
	for _, a := range in.listed {
		all = append(all, a.String())
	}
	in.settings = put(in.settings, setting{name: "advertise", value: all, why: "virtual_ipaddress"})
}

// last returns the instance's last statement that starts with word, or nil if there is none.
func (in *instance) last(word string) (found *statement) {
	for _, c := range in.n.children {
		if c.word(0) == word {
			found = c
		}
	}
	return found
}

// address reads the VIPs in a block. It ignores other statements.
func (in *instance) address(c *statement) {
	listed := c.word(0) == "virtual_ipaddress"
	if !listed && c.word(0) != "virtual_ipaddress_excluded" {
		return
	}
	for _, e := range c.children {
		text, length, _ := strings.Cut(e.word(0), "/")
		a, err := parseAddr(text)
		if err == nil {
			_, problems := balancer.DecodeVIP(a.String(), map[string]any{"hold": "one"}, nil, balancer.SeverityError)
			if i := slices.IndexFunc(problems, func(p balancer.Problem) bool { return p.Severity == balancer.SeverityError }); i >= 0 {
				in.note(e.line, "left out: %s", problems[i].Text)
				continue
			}
		}
		switch owner := in.held[a]; {
		case err != nil:
			in.note(e.line, "left out: %v", err)
			continue
		case owner != "":
			in.note(e.line, "left out: %s already has this address", owner)
			continue
		}
		in.held[a] = in.name
		in.vips = append(in.vips, listElement{value: a.String(), line: e.line})
		if listed && (len(in.listed) == 0 || in.listed[0].Is4() == a.Is4()) {
			in.listed = append(in.listed, a)
		} else {
			in.excluded = append(in.excluded, a)
		}
		if length != "" && length != strconv.Itoa(a.BitLen()) {
			in.note(e.line, "vipd adds %s without its network: the interface needs its own address in that network", a)
		}
		for i, word := range e.words {
			if word == "dev" && in.last("interface") != nil && e.word(i+1) != in.last("interface").word(1) {
				in.note(e.line, "vipd adds a VIP to the interface whose network contains it, which might not be %s", plain(e.word(i+1)))
			}
		}
	}
}

func (in *instance) statement(c *statement) {
	word := c.word(1)
	switch c.word(0) {
	case "interface":
		in.set(c.line, "interface", word)
	case "virtual_router_id":
		in.set(c.line, "router_id", number(word))
	case "priority":
		in.priority(c)
	case "advert_int":
		in.interval(c)
	case "unicast_src_ip", "mcast_src_ip":
		in.source(c)
	case "unicast_peer":
		in.peers(c)
	case "authentication":
		in.authentication(c)
	case "down_timer_adverts":
		in.downAdverts(c)
	case "v3_checksum_as_v2":
		if word != "off" && word != "false" && word != "no" && in.version == 3 && slices.ContainsFunc(in.listed, netip.Addr.Is4) {
			in.set(c.line, "checksum", string(config.PlainChecksum))
		}
	case "garp_master_refresh":
		if n := number(word); n > 0 && n <= 86400 {
			in.announce = &setting{name: "announce_every", value: seconds(time.Duration(n) * time.Second), line: c.line}
		}
	case "nopreempt":
		in.noPreempt(c)
	case "preempt_delay":
		in.preemptDelay(c)
	default:
		if includes(c) {
			in.note(c.line, "not read: convert the included file as well")
			return
		}
		in.answer(c.line, "vrrp", c.word(0))
	}
}

func (in *instance) priority(c *statement) {
	switch n := number(c.word(1)); {
	case n == 255:
		in.set(c.line, "priority", int64(254))
		in.note(c.line, "priority is set to 254: 255 is for a host that has the VIP as its own address")
	case n == 1:
		in.set(c.line, "priority", int64(2))
		in.note(c.line, "priority is set to 2: a host that can't serve the VIPs sends 1")
	case n < 1 || n > 255:
		in.note(c.line, "left out: a priority must be 2 to 254; keepalived's default, 100, is used")
	default:
		in.set(c.line, "priority", n)
	}
}

// interval reads the advert interval, in seconds with decimals.
func (in *instance) interval(c *statement) {
	f, err := strconv.ParseFloat(c.word(1), 64)
	if err != nil || f <= 0 || f > 255 {
		in.reasons = append(in.reasons, in.newNote(c.line, "%q is not a number of seconds", plain(c.word(1))))
		return
	}
	d := time.Duration(f * float64(time.Second)).Round(10 * time.Millisecond)
	in.set(c.line, "advert_interval", seconds(d))
}

func (in *instance) source(c *statement) {
	a, err := parseAddr(c.word(1))
	if err != nil {
		in.note(c.line, "left out: %v", err)
		return
	}
	in.set(c.line, "source", a.String())
}

func (in *instance) peers(c *statement) {
	var all []any
	for _, e := range c.children {
		a, err := parseAddr(e.word(0))
		switch {
		case err != nil:
			in.note(e.line, "left out: %v", err)
			continue
		case len(e.words) > 1:
			in.note(e.line, "peer options are left out; unicast_ttl in [ownership.vrrp.%s] applies to all peers", in.name)
		}
		all = append(all, a.String())
	}
	if len(all) > 0 {
		in.set(c.line, "peers", all)
	}
}

// authentication reads the password, which has at most 8 bytes. keepalived ignores it in version 3.
func (in *instance) authentication(c *statement) {
	kind := "PASS"
	password := ""
	line := c.line
	for _, e := range c.children {
		switch e.word(0) {
		case "auth_type":
			kind = e.word(1)
		case "auth_pass":
			password, line = strings.Join(e.rest(1), " "), e.line
		}
	}
	switch {
	case in.version == 3:
		in.note(c.line, "left out: VRRP version 3 has no authentication, and keepalived also ignores it; to accept adverts only from certain hosts, list them in peers")
	case kind != "PASS" && kind != "1":
		in.reasons = append(in.reasons, in.newNote(c.line, "vipd supports authentication by PASS, not by %s", plain(kind)))
	case password != "":
		const longest = 8
		if len(password) > longest {
			in.note(line, "password is cut to its first 8 bytes, as in keepalived")
		}
		in.settings = put(in.settings, setting{name: "password", value: strings.ToValidUTF8(password[:min(len(password), longest)], ""), why: "sent in the clear"})
	}
}

func (in *instance) downAdverts(c *statement) {
	n := number(c.word(1))
	if n < 3 || n > 10 {
		in.reasons = append(in.reasons, in.newNote(c.line, "vipd accepts 3 to 10, and all hosts in the group must use the same value"))
		return
	}
	in.set(c.line, "down_adverts", n)
}

// noPreempt reads nopreempt, which keepalived ignores on a host whose state is MASTER.
func (in *instance) noPreempt(c *statement) {
	if s := in.last("state"); s != nil && s.word(1) == "MASTER" {
		in.note(c.line, "left out: keepalived ignores nopreempt with state MASTER; its equivalent is preempt = \"never\"")
		return
	}
	in.set(c.line, "preempt", "never")
}

func (in *instance) preemptDelay(c *statement) {
	if find(in.settings, "preempt") != nil {
		return
	}
	f, err := strconv.ParseFloat(c.word(1), 64)
	if err != nil || f < 0 || f > 86400 {
		in.note(c.line, "left out: %q is not a number of seconds", plain(c.word(1)))
		return
	}
	in.set(c.line, "preempt", seconds(time.Duration(f*float64(time.Second)).Round(time.Millisecond)))
}

// defaults writes keepalived's defaults that differ from vipd's.
func (in *instance) defaults() {
	in.settings = defaulted(in.settings, "advert_interval", "1s")
	in.settings = defaulted(in.settings, "preempt", "0s")
	switch c := in.last("version"); {
	case in.version != 2:
	case c != nil:
		in.set(c.line, "version", int64(2))
	default:
		in.settings = defaulted(in.settings, "version", int64(2))
	}
}
