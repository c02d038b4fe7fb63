package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"vipd/balancer"
)

// nftObject is an object in the output of nft -j: a chain, a rule, or any other object. For any
// other object, both fields are nil.
type nftObject struct {
	Chain *nftChain `json:"chain"`
	Rule  *nftRule  `json:"rule"`
}

type nftChain struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	Hook   string `json:"hook"`
	Prio   int    `json:"prio"`
	Policy string `json:"policy"`
}

type nftRule struct {
	Handle int                          `json:"handle"`
	Expr   []map[string]json.RawMessage `json:"expr"`
}

// fromTables reports whether iptables-nft has probably created the chain. The rules in these chains
// are read with iptables-save instead.
func (c *nftChain) fromTables() bool {
	return (c.Family == "ip" || c.Family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, c.Table) &&
		strings.ToUpper(c.Name) == c.Name
}

// place returns the chain's family, table and name in the syntax of nft commands.
func (c *nftChain) place() string { return c.Family + " " + c.Table + " " + c.Name }

// nft runs nft -j, and returns the objects in its output.
func (s System) nft(ctx context.Context, args ...string) ([]nftObject, error) {
	text, err := s.Run(ctx, "nft", append([]string{"-j"}, args...)...)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Objects []nftObject `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return nil, fmt.Errorf("reading the output of nft: %w", err)
	}
	return answer.Objects, nil
}

// checkForeignChains looks for chains in other programs' nft tables that may drop connections to
// VIPs.
func checkForeignChains(ctx context.Context, o *observed) (found []Finding) {
	if !o.Root {
		return nil // checkRules reports the error
	}
	if !o.has("nft") {
		return []Finding{note("other programs' nft tables were not read: nft is not installed", "", "apt-get install nftables")}
	}
	hooks := []string{"prerouting", "input", "output"}
	if o.mode().Forward { // in other modes, connections to VIPs end on this host
		hooks = append(hooks, "forward")
	}
	objects, err := o.nft(ctx, "list", "chains")
	if err != nil {
		return []Finding{warning("other programs' nft tables can't be read: "+oneLine(err), "", "nft list chains")}
	}
	for _, object := range objects {
		c := object.Chain
		if c == nil || c.Type != "filter" || c.fromTables() || !slices.Contains(hooks, c.Hook) {
			continue
		}
		found = append(found, foreignChain(ctx, o, c)...)
	}
	return orFine(found, "no other program's nft table drops packets by default or mentions your VIPs")
}

// foreignChain reports whether a chain's policy or a rule without conditions drops packets, and
// which rules drop packets to a VIP or an endpoint.
func foreignChain(ctx context.Context, o *observed, c *nftChain) (found []Finding) {
	how := ""
	if c.Policy == "drop" {
		how = "has the policy drop"
	}
	objects, err := o.nft(ctx, "list", "chain", c.Family, c.Table, c.Name)
	if err != nil && how == "" {
		return []Finding{warning(fmt.Sprintf("the nft chain %s can't be read: %s", c.place(), oneLine(err)), "", "")}
	}
	lets, accepted := false, map[string]bool{}
	for _, object := range objects {
		if object.Rule == nil {
			continue
		}
		lets = lets || letsVIPs(o, object.Rule)
		switch {
		case object.Rule.ends("accept"):
			for _, to := range named(o, object.Rule) {
				accepted[to] = true
			}
		case object.Rule.ends("drop", "reject") && !lets && how == "" && !strings.HasPrefix(c.Table, "vipd"):
			to := slices.DeleteFunc(named(o, object.Rule), func(to string) bool { return accepted[to] })
			if len(to) == 0 {
				break
			}
			found = append(found, warning(fmt.Sprintf("a rule of the nft chain %s (hook %s) drops or rejects packets to %s", c.place(), c.Hook, list(to)),
				"the rule might have other conditions; health checks come from this host, so they might pass through another hook",
				fmt.Sprintf("nft delete rule %s handle %d", c.place(), object.Rule.Handle)))
		}
		if how == "" && object.Rule.dropsAll() {
			how = "ends in a rule that drops or rejects all packets"
		}
	}
	switch bit := o.connectionMark(); {
	case how == "":
	case lets:
		found = append(found, note(fmt.Sprintf("the nft chain %s %s, but first accepts connections to VIPs", c.place(), how), "", ""))
	default:
		found = append(found, warning(fmt.Sprintf("the nft chain %s (hook %s) %s", c.place(), c.Hook, how),
			"vipd accepts its connections in iptables chains, but an accept there does not overrule a drop here. "+
				"Connections to VIPs carry a mark: add a rule that accepts it",
			fmt.Sprintf("nft insert rule %s ct mark and %#x == %#x accept", c.place(), bit, bit)))
	}
	return found
}

// dropsAll reports whether the rule drops or rejects all packets.
func (r *nftRule) dropsAll() bool {
	ends := false
	for _, e := range r.Expr {
		for kind := range e {
			switch kind {
			case "drop", "reject":
				ends = true
			case "counter", "log", "comment":
			default:
				return false
			}
		}
	}
	return ends
}

// ends reports whether the rule contains one of the verdicts, such as "accept".
func (r *nftRule) ends(verdicts ...string) bool {
	return slices.ContainsFunc(r.Expr, func(e map[string]json.RawMessage) bool {
		return slices.ContainsFunc(verdicts, func(verdict string) bool { return e[verdict] != nil })
	})
}

// named returns the frontends and endpoints whose addresses are destinations in the rule.
func named(o *observed, r *nftRule) (places []string) {
	var hosts []netip.Prefix
	var ports []portRange // if it is empty, every port matches
	for _, e := range r.Expr {
		var m struct {
			Op   string `json:"op"`
			Left struct {
				Payload struct {
					Field string `json:"field"`
				} `json:"payload"`
			} `json:"left"`
			Right json.RawMessage `json:"right"`
		}
		if e["match"] == nil || json.Unmarshal(e["match"], &m) != nil || m.Op != "==" {
			continue
		}
		switch m.Left.Payload.Field {
		case "daddr":
			hosts = prefixes(m.Right)
		case "dport":
			ports = nftPorts(m.Right)
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	in := func(k balancer.Key) bool {
		return (len(ports) == 0 || slices.ContainsFunc(ports, func(r portRange) bool { return r.overlaps(k.Port) })) &&
			slices.ContainsFunc(hosts, func(p netip.Prefix) bool { return p.Contains(k.Addr) })
	}
	for _, f := range o.Frontends {
		if in(f.Key) {
			places = append(places, fmt.Sprintf("%s (%s)", f.Key, f.Service))
		}
		for _, b := range f.Backends {
			if k := f.portsOf(b); in(k) {
				places = append(places, fmt.Sprintf("the endpoint %s of %s", k.Place(), f.Service))
			}
		}
	}
	slices.Sort(places)
	return slices.Compact(places)
}

// prefixes returns the networks on the right side of a match: an address, a network, or a set of
// both. It ignores named sets.
func prefixes(from json.RawMessage) []netip.Prefix {
	var one string
	if json.Unmarshal(from, &one) == nil {
		a, err := netip.ParseAddr(one)
		if err != nil {
			return nil
		}
		return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	}
	var more struct {
		Prefix struct {
			Addr netip.Addr `json:"addr"`
			Len  int        `json:"len"`
		} `json:"prefix"`
		Set []json.RawMessage `json:"set"`
	}
	if json.Unmarshal(from, &more) != nil {
		return nil
	}
	if more.Prefix.Addr.IsValid() {
		return []netip.Prefix{netip.PrefixFrom(more.Prefix.Addr, more.Prefix.Len)}
	}
	var all []netip.Prefix
	for _, m := range more.Set {
		all = append(all, prefixes(m)...)
	}
	return all
}

// letsVIPs reports whether the rule accepts connections to VIPs because it accepts translated
// connections, or connections with vipd's mark.
func letsVIPs(o *observed, r *nftRule) bool {
	accepts, known := false, false
	for _, e := range r.Expr {
		if _, ok := e["accept"]; ok {
			accepts = true
		}
		if text := string(e["match"]); text != "" {
			flat := strings.NewReplacer(" ", "", "\n", "").Replace(text)
			known = known || o.translates() && strings.Contains(flat, `"key":"status"`) && strings.Contains(flat, `"dnat"`) ||
				strings.Contains(flat, `"key":"mark"`) && strings.Contains(flat, fmt.Sprint(o.connectionMark()))
		}
	}
	return accepts && known
}
