package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
)

// checkOutput searches the OUTPUT chain for rules that drop packets from this host to endpoints.
// Health checks, userspace mode and local programs send such packets. vipd's own rules accept only
// packets from local programs.
func checkOutput(_ context.Context, o *observed) (found []Finding) {
	for _, b := range o.backends {
		found = append(found, droppedOutput(o, b)...)
	}
	return found
}

// droppedOutput returns a finding for each rule in a backend's OUTPUT chain that drops packets to
// endpoints.
func droppedOutput(o *observed, b *iptablesRules) (found []Finding) {
	if c := b.chainOf("filter", "OUTPUT"); c.policy != "DROP" && judge(o, b, c.rules, 0).drops == nothing {
		return nil
	}
	here := map[netip.Addr]bool{}
	for _, i := range o.interfaces {
		for _, addr := range i.Addrs {
			here[addr] = true
		}
	}
	lost := map[string][]string{}
	seen := map[packet]bool{}
	for _, f := range o.Frontends {
		for _, e := range f.Backends {
			to := packet{f.portsOf(e), e.Addr().IsLoopback() || here[e.Addr()]}
			if seen[to] || e.Addr().Is4() != (b.family == "iptables") {
				continue
			}
			seen[to] = true
			if by := b.outputDrop(to); by != "" {
				lost[by] = append(lost[by], fmt.Sprintf("%s of %s", to.Place(), f.Service))
			}
		}
	}
	for _, by := range slices.Sorted(maps.Keys(lost)) {
		found = append(found, warning(fmt.Sprintf("OUTPUT of %s drops packets that this host sends to %s: %s", b.program, list(lost[by]), by),
			"health checks, userspace mode and programs on this host can't reach these endpoints", b.program+" -S OUTPUT"))
	}
	return found
}

// outputDrop returns the rule or the policy of the chain OUTPUT that certainly drops packets to an
// endpoint, or "". It also checks the first and the last port of a range alone, because rules may
// accept only some of its ports.
func (b *iptablesRules) outputDrop(to packet) string {
	first, last := to, to
	first.Port, last.Port = balancer.PortRange(to.Port.First()), balancer.PortRange(to.Port.Last())
	for _, p := range slices.Compact([]packet{to, first, last}) {
		if _, by := b.verdictOf(p, "OUTPUT", 0); by != "" {
			return by
		}
	}
	return ""
}

// packet is the first packet of a connection from this host to an endpoint, or another host's VRRP
// advert. Key is its destination, which may have any port of a range.
type packet struct {
	balancer.Key
	// here reports whether the endpoint is on this host. If so, the packet leaves through lo.
	here bool
}

// verdictOf reports whether a chain in the filter table accepts the packet. If the chain certainly
// drops the packet, by is the rule or the policy that drops it. A rule with unknown conditions,
// such as a user ID, counts if it accepts packets, but not if it drops them.
func (b *iptablesRules) verdictOf(to packet, name string, depth int) (accepted bool, by string) {
	c := b.chainOf("filter", name)
	stays := true
	for _, rule := range c.rules {
		may, sure := to.matches(rule)
		if !may {
			continue
		}
		sure = sure && stays
		switch jump := target(rule); {
		case jump == "ACCEPT" || jump == "NFQUEUE": // the program that reads the queue may accept the packet
			return true, ""
		case jump == "RETURN" && sure:
			return false, ""
		case jump == "RETURN":
			stays = false
		case jump == "DROP" || jump == "REJECT":
			if sure {
				return false, rule
			}
		case depth < maxJumps && b.tables["filter"][jump] != nil && !strings.HasPrefix(jump, "VIPD-"):
			if accepted, by := b.verdictOf(to, jump, depth+1); accepted || by != "" && sure {
				return accepted, by
			}
		}
	}
	if c.policy == "DROP" {
		return false, "its policy is DROP, and no rule accepts it"
	}
	return false, ""
}

// matches evaluates a rule in iptables-save's syntax: may reports whether the rule may match the
// packet, and sure whether it certainly matches.
func (to packet) matches(rule string) (may, sure bool) {
	conditions, _, _ := strings.Cut(strings.Replace(withoutComment(rule), "-g ", "-j ", 1), "-j ")
	words := append(strings.Fields(conditions), "")
	sure = true
	for i, option := range words {
		if !strings.HasPrefix(option, "-") || option == "-m" {
			continue // a value, "!", or the module of the following options
		}
		fits, known := to.fulfils(option, words[i+1])
		if known && fits == (i > 0 && words[i-1] == "!") {
			return false, false
		}
		sure = sure && known
	}
	return true, sure
}

// withoutComment returns the rule without its comment option.
func withoutComment(rule string) string {
	before, text, found := strings.Cut(rule, "-m comment --comment ")
	if !found {
		return rule
	}
	_, after, _ := strings.Cut(text, " ")
	if strings.HasPrefix(text, `"`) {
		_, after, _ = strings.Cut(text[1:], `" `)
	}
	return before + after
}

// fulfils evaluates an iptables option: fits reports whether the packet satisfies it, and known
// whether that can be determined.
func (to packet) fulfils(option, value string) (fits, known bool) {
	switch option {
	case "-d":
		network, err := netip.ParsePrefix(value)
		return err == nil && network.Contains(to.Addr), err == nil
	case "-p":
		return value == string(to.Proto) || value == vrrpProtocol && to.Proto == "vrrp", true
	case "--dport":
		ports := portRanges(value)
		return len(ports) == 1 && ports[0].overlaps(to.Port), len(ports) == 1
	case "--ctstate", "--state":
		return slices.Contains(strings.Split(value, ","), "NEW"), true
	case "-i":
		return false, value == "lo" // packets from other hosts do not arrive on lo
	case "-o":
		return to.here && value == "lo", to.here || value == "lo"
	}
	return false, false
}
