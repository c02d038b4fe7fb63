package host

import (
	"net/netip"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/ipset"
)

// partDef is one concern of the guard: a chain, the jumps to it, and the sets that they look at. The first set is the
// gate: the jumps match on it, and while nobody wants anything in it the part is not there at all.
type partDef struct {
	name string
	// loss says what is the matter while the part can't be had.
	loss     string
	severity balancer.Severity
	table    string
	chain    string
	// bases are the kernel's chains that jump to the chain.
	bases []string
	// gateMatch is how the jumps look at the gate: "dst" or "dst,dst".
	gateMatch string
	sets      []setDef
	// rules are the chain's; a set's name stands as %name%.
	rules func(family ipset.Family) []string
}

// setDef is a set and what each frontend puts into it.
type setDef struct {
	name string
	kind ipset.Kind
	// early sets restrict: entries come in before the frontend that they are for is applied, and go after no applied
	// one needs them. Those of the others hold while both the wanted frontend and the applied one ask for them: they come
	// in after the frontend was applied, and go before another is.
	early bool
	// entries are those of one frontend; nil where frontends are not what the set holds.
	entries func(*balancer.Frontend) []ipset.Entry
}

// heldSet is the set of addresses that vipd added.
const heldSet = "held"

// parts is the whole of the guard.
func parts() []partDef {
	return []partDef{
		{
			name: "guard", loss: "addresses that vipd holds answer on every port that this host listens on", severity: balancer.SeverityWarning,
			table: "filter", chain: "VIPD-GUARD", bases: []string{"INPUT"}, gateMatch: "dst",
			sets: []setDef{
				{name: heldSet, kind: ipset.HashIP, early: true},
				{name: "served", kind: ipset.HashIPPort, entries: served},
			},
			rules: func(family ipset.Family) []string {
				icmp := "icmp"
				if family == ipset.IPv6 {
					icmp = "ipv6-icmp"
				}
				return append([]string{"-p " + icmp + " -j RETURN", "-m set --match-set %served% dst,dst -j RETURN"}, refusal(family)...)
			},
		},
		{
			// Where the VIP is held the guard does the same; this is for the host's own addresses, for traffic that is only
			// routed through here, and for what this host itself sends there.
			name: "reject", loss: "clients of a service without endpoints may reach a program of this host that listens on its port", severity: balancer.SeverityWarning,
			table: "filter", chain: "VIPD-REJECT", bases: []string{"INPUT", "FORWARD", "OUTPUT"}, gateMatch: "dst,dst",
			sets:  []setDef{{name: "rejected", kind: ipset.HashIPPort, entries: rejected}},
			rules: refusal,
		},
		{
			name: "sources", loss: "source_ranges are not enforced", severity: balancer.SeverityError,
			// Before every mode's own place: IPVS takes traffic before filter OUTPUT, NAT rewrites its destination.
			table: "mangle", chain: "VIPD-SOURCES", bases: []string{"PREROUTING"}, gateMatch: "dst,dst",
			sets: []setDef{
				{name: "restricted", kind: ipset.HashIPPort, early: true, entries: restricted},
				{name: "allowed", kind: ipset.HashIPPortNet, early: true, entries: allowed},
			},
			rules: func(ipset.Family) []string {
				return []string{
					"-i lo -j RETURN", // the node itself always may
					"-m set --match-set %allowed% dst,dst,src -j RETURN",
					"-j DROP",
				}
			},
		},
		{
			name: "silent", loss: "clients of services without endpoints and no_endpoints = \"drop\" are rejected", severity: balancer.SeverityNearest,
			table: "mangle", chain: "VIPD-SILENT", bases: []string{"PREROUTING", "OUTPUT"}, gateMatch: "dst,dst",
			sets:  []setDef{{name: "silent", kind: ipset.HashIPPort, early: true, entries: silent}},
			rules: func(ipset.Family) []string { return []string{"-j DROP"} },
		},
	}
}

// refusal are the rules that tell clients no.
func refusal(family ipset.Family) []string {
	unreachable := "icmp-port-unreachable"
	if family == ipset.IPv6 {
		unreachable = "icmp6-port-unreachable"
	}
	return []string{"-p tcp -j REJECT --reject-with tcp-reset", "-j REJECT --reject-with " + unreachable}
}

// setName is the kernel's name of a set.
func setName(name string, family ipset.Family) string {
	return "vipd-" + name + digit(family)
}

func digit(family ipset.Family) string {
	if family == ipset.IPv6 {
		return "6"
	}
	return "4"
}

// jump is the rule that leads to the part's chain.
func (d *partDef) jump(family ipset.Family) []string {
	return []string{
		"-m", "conntrack", "--ctstate", "NEW,UNTRACKED",
		"-m", "set", "--match-set", setName(d.sets[0].name, family), d.gateMatch, "-j", d.chain,
	}
}

// restore is the input that makes the part's chain what it should be, whatever it was.
func (d *partDef) restore(family ipset.Family) string {
	var b strings.Builder
	b.WriteString("*" + d.table + "\n:" + d.chain + " - [0:0]\n")
	for _, rule := range d.rules(family) {
		for _, s := range d.sets {
			rule = strings.ReplaceAll(rule, "%"+s.name+"%", setName(s.name, family))
		}
		b.WriteString("-A " + d.chain + " " + rule + "\n")
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// references is how many rules look at the i-th set.
func (d *partDef) references(i int, family ipset.Family) int {
	n := strings.Count(strings.Join(d.rules(family), "\n"), "%"+d.sets[i].name+"%")
	if i == 0 {
		n += len(d.bases)
	}
	return n
}

func place(f *balancer.Frontend) ipset.Entry {
	e := ipset.Entry{Addr: f.Addr, Port: f.Key.Port, Proto: ipset.TCP}
	switch f.Proto {
	case balancer.UDP:
		e.Proto = ipset.UDP
	case balancer.SCTP:
		e.Proto = ipset.SCTP
	}
	return e
}

// served are the ports that held addresses answer on: without an active backend the mode lets go of the port, and the
// host's own program on it would answer. Node ports are on addresses that are never held.
func served(f *balancer.Frontend) []ipset.Entry {
	if f.NodePort || f.Addr.IsLoopback() || !f.Serves() {
		return nil
	}
	return []ipset.Entry{place(f)}
}

// restricted are the frontends that not everybody may use. Loopback ones are for the node alone anyway.
func restricted(f *balancer.Frontend) []ipset.Entry {
	if len(f.Sources) == 0 || f.Addr.IsLoopback() {
		return nil
	}
	return []ipset.Entry{place(f)}
}

// allowed are those who may. A network of all addresses takes two entries, for the kernel can't hold /0.
func allowed(f *balancer.Frontend) []ipset.Entry {
	if f.Addr.IsLoopback() {
		return nil
	}
	var entries []ipset.Entry
	add := func(n netip.Prefix) {
		e := place(f)
		e.Net = n.Masked()
		entries = append(entries, e)
	}
	for _, n := range f.Sources {
		switch {
		case n.Addr().Is4() != f.Addr.Is4():
		case n.Bits() == 0:
			half := netip.PrefixFrom(n.Masked().Addr(), 1)
			add(half)
			add(upperHalf(half))
		default:
			add(n)
		}
	}
	return entries
}

// upperHalf returns the other /1.
func upperHalf(n netip.Prefix) netip.Prefix {
	b := n.Addr().AsSlice()
	b[0] = 0x80
	a, _ := netip.AddrFromSlice(b) // of the length of an address
	return netip.PrefixFrom(a, 1)
}

// rejected are the frontends that refuse.
func rejected(f *balancer.Frontend) []ipset.Entry {
	if f.NoBackends != balancer.RejectClients || f.Serves() {
		return nil
	}
	return []ipset.Entry{place(f)}
}

// silent are the frontends that give no answer.
func silent(f *balancer.Frontend) []ipset.Entry {
	if f.NoBackends != balancer.DropClients || f.Serves() {
		return nil
	}
	return []ipset.Entry{place(f)}
}
