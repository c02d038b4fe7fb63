package convert

import (
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// fill converts a virtual_server block.
func (k *keepalived) fill(s *service, n *statement) {
	inherited := checkSettings{}
	for _, c := range n.children {
		if !inherited.store(c) {
			k.setting(s, c)
		}
	}
	s.settings = defaulted(s.settings, "scheduler", "wlc")
	var checkers []*checker
	for _, c := range n.children {
		isBackup := c.word(0) == "backup_real_server"
		if c.word(0) != "real_server" && !isBackup {
			continue
		}
		if fields := k.endpointAt(s, c.line, c.word(1), c.word(2)); fields != nil {
			if isBackup {
				fields["backup"] = true
			}
			checkers = append(checkers, k.realServer(s, c, fields, inherited))
		}
	}
	sorry := k.sorryServers(s, n)
	k.quorum(s, n, len(sorry) > 0)
	k.forwardPorts(s)
	k.health(s, checkers)
	for _, line := range sorry {
		if len(s.health) > 0 {
			k.note(line, "gets clients only while its checks pass, because vipd checks it like the real servers; keepalived does not check it")
		}
	}
}

// sorryServers adds the sorry servers as backups, and returns their lines.
func (k *keepalived) sorryServers(s *service, n *statement) (lines []int) {
	for _, c := range n.children {
		if c.word(0) != "sorry_server" {
			continue
		}
		if fields := k.endpointAt(s, c.line, c.word(1), c.word(2)); fields != nil {
			fields["backup"] = true
			lines = append(lines, c.line)
		}
	}
	return lines
}

// quorum converts the quorum. If too few servers are up, keepalived sends clients to the sorry
// server. Without a sorry server, it keeps serving, and only runs scripts.
func (k *keepalived) quorum(s *service, n *statement, hasSorry bool) {
	for _, c := range n.children {
		quorum, err := strconv.Atoi(c.word(1))
		switch {
		case c.word(0) != "quorum" || c.word(1) == "1":
		case err != nil || quorum < 1:
			k.answer(c.line, "", "quorum")
		case hasSorry:
			s.set(c.line, "min_usable", int64(quorum))
			k.note(c.line, "min_usable counts endpoints; keepalived adds up their weights")
		default:
			k.note(c.line, "keepalived serves below its quorum, and so does vipd; if fewer endpoints must not serve, set min_usable = %d", quorum)
		}
	}
}

// setting converts a virtual_server statement that defines neither a server nor a check.
func (k *keepalived) setting(s *service, n *statement) {
	switch name, value := n.word(0), n.word(1); name {
	case "real_server", "backup_real_server", "sorry_server":
		return // fill adds servers and checks after the settings
	case "lb_algo", "lvs_sched":
		k.scheduler(s, n.line, value)
	case "lb_kind", "lvs_method":
		k.forward(s, n)
	case "persistence_timeout":
		k.persistence(s, n)
	case "persistence_granularity":
		k.granularity(n.line)
	case "persistence_engine":
		k.note(n.line, "affinity uses the client's address; a persistence engine such as %s has no equivalent", plain(value))
	case "quorum":
		return // fill reads the quorum after the sorry servers
	case "hysteresis":
		if value != "0" {
			k.note(n.line, "vipd serves as soon as min_usable endpoints are usable; the nearest setting is a larger rise in the health table")
		}
	case "quorum_up", "quorum_down":
		if announces.MatchString(strings.Join(n.rest(1), " ")) {
			k.note(n.line, "%s", nearWithdraw)
			return
		}
		k.note(n.line, "%s", nearHook)
	default:
		if includes(n) {
			k.disable(s, n.line, "the included file is not read, and might contain servers of this service: insert its lines here")
			return
		}
		k.answer(n.line, "", name)
	}
}

// announces matches scripts that add or remove an address, or announce a route.
var announces = regexp.MustCompile(`\bip( +-\S+)* +(a|addr|address|r|route) |\bifconfig\b|\b(birdc?|exabgp|gobgp|vtysh)\b`)

// persistence converts persistence_timeout. Zero means no persistence.
func (k *keepalived) persistence(s *service, n *statement) {
	timeout := usualKeepalivedPersistence
	if text := n.word(1); text != "" {
		t, ok := k.span(n.line, text, time.Second)
		if !ok || t.time == 0 {
			return
		}
		timeout = t.time
	}
	s.persistent(n.line, timeout)
}

// forward converts lb_kind. FNAT translates both addresses.
func (k *keepalived) forward(s *service, n *statement) {
	kind := strings.ToUpper(n.word(1))
	way, known := map[string]string{"NAT": "nat", "FNAT": "nat", "FULLNAT": "nat", "DR": "dr", "TUN": "tunnel"}[kind]
	if !known {
		k.disable(s, n.line, "vipd does not have this forwarding method; forward is set to \"nat\"")
		return
	}
	if first := find(s.settings, "forward"); first != nil && first.value != way {
		k.disable(s, n.line, "forward is the same for all endpoints of a service: write a service for each forwarding method")
		return
	}
	s.set(n.line, "forward", way)
	if kind == "FNAT" || kind == "FULLNAT" {
		s.set(n.line, "snat", "always")
	}
	if len(n.words) > 2 {
		k.note(n.line, "vipd's tunnels use IP in IP; other types have no equivalent")
	}
}

// realServer converts a real_server block, and returns its first checker, or nil.
func (k *keepalived) realServer(s *service, n *statement, fields map[string]any, inherited checkSettings) (first *checker) {
	own := maps.Clone(inherited)
	for _, c := range n.children {
		own.store(c)
	}
	for _, c := range n.children {
		switch name := c.word(0); {
		case own[checkSettingName(name)] == c, name == "inhibit_on_failure", name == "alpha", name == "warmup":
			// These are read above, or describe vipd's usual behavior.
		case name == "weight" || name == "uthreshold":
			field := map[string]string{"weight": "weight", "uthreshold": "max_connections"}[name]
			k.amount(fields, c.line, name, field, c.word(1))
		case name == "lthreshold":
			k.note(c.line, "vipd uses an endpoint again as soon as it is below max_connections")
		case name == "lvs_method" || name == "lb_kind":
			k.serverForward(s, c)
		case strings.HasSuffix(name, "_CHECK") || strings.HasSuffix(name, "_GET"):
			if first != nil {
				k.note(c.line, "an endpoint has only one check; this is the second check. The nearest equivalent is a check of type exec that does both")
				continue
			}
			first = &checker{server: n.word(1), root: c, settings: maps.Clone(own)}
		default:
			k.setting(s, c)
		}
	}
	return first
}

// serverForward compares a server's forwarding method with its service's.
func (k *keepalived) serverForward(s *service, n *statement) {
	own := &service{}
	k.forward(own, n)
	way, ownWay := find(s.settings, "forward"), find(own.settings, "forward")
	if ownWay == nil || way == nil && ownWay.value != "nat" || way != nil && way.value != ownWay.value {
		k.disable(s, n.line, "forward is the same for all endpoints of a service: write a service for each forwarding method")
	}
}
