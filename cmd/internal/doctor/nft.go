package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// nftObject is one entry of what nft -j prints; of its kinds those that are of interest.
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
	Policy string `json:"policy"`
}

type nftRule struct {
	Handle int                          `json:"handle"`
	Expr   []map[string]json.RawMessage `json:"expr"`
}

// fromTables reports whether iptables-nft made the chain: those are read as iptables' rules.
func (c *nftChain) fromTables() bool {
	return (c.Family == "ip" || c.Family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, c.Table) &&
		strings.ToUpper(c.Name) == c.Name
}

// place writes the chain as nft's commands do.
func (c *nftChain) place() string { return c.Family + " " + c.Table + " " + c.Name }

// nft runs nft -j.
func (v *visit) nft(ctx context.Context, args ...string) ([]nftObject, error) {
	text, err := v.Run(ctx, "nft", append([]string{"-j"}, args...)...)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Objects []nftObject `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return nil, fmt.Errorf("reading what nft prints: %w", err)
	}
	return answer.Objects, nil
}

// foreignChains looks at the chains of others' nft tables that filter what vipd's traffic passes through.
func (v *visit) foreignChains(ctx context.Context) {
	before := len(v.found)
	if _, err := v.Look("nft"); err != nil {
		v.add(note("others' nft tables were not looked at: nft is not installed", "", "apt-get install nftables"))
		return
	}
	hooks := []string{"prerouting", "input", "output"}
	if v.mode().Forward { // else connections to VIPs end on this host
		hooks = append(hooks, "forward")
	}
	objects, err := v.nft(ctx, "list", "chains")
	if err != nil {
		v.add(warning("others' nft tables can't be read: "+oneLine(err), "", "nft list chains"))
		return
	}
	for _, o := range objects {
		c := o.Chain
		if c == nil || c.Type != "filter" || c.fromTables() || !slices.Contains(hooks, c.Hook) {
			continue
		}
		v.foreignChain(ctx, c)
	}
	if len(v.found) == before {
		v.add(fine("no nft table of others drops what it does not know, or names what vipd serves"))
	}
}

// foreignChain looks at a chain that may drop, by its policy or by a rule without conditions, what its rules do not accept.
func (v *visit) foreignChain(ctx context.Context, c *nftChain) {
	how := ""
	if c.Policy == "drop" {
		how = "has the policy drop"
	}
	objects, err := v.nft(ctx, "list", "chain", c.Family, c.Table, c.Name)
	if err != nil && how == "" {
		v.add(warning(fmt.Sprintf("the nft chain %s can't be read: %s", c.place(), oneLine(err)), "", ""))
		return
	}
	lets, accepted := false, map[string]bool{}
	for _, o := range objects {
		if o.Rule == nil {
			continue
		}
		lets = lets || v.letsVIPs(o.Rule)
		switch {
		case o.Rule.ends("accept"):
			for _, to := range v.named(o.Rule) {
				accepted[to] = true
			}
		case o.Rule.ends("drop", "reject") && !lets && how == "" && !strings.HasPrefix(c.Table, "vipd"):
			to := slices.DeleteFunc(v.named(o.Rule), func(to string) bool { return accepted[to] })
			if len(to) == 0 {
				break
			}
			v.add(warning(fmt.Sprintf("a rule of the nft chain %s (hook %s) drops or rejects packets to %s", c.place(), c.Hook, list(to)),
				"the rule may have more conditions; health checks come from this host and may pass another hook",
				fmt.Sprintf("nft delete rule %s handle %d", c.place(), o.Rule.Handle)))
		}
		if how == "" && o.Rule.dropsAll() {
			how = "ends in a rule that drops or rejects all"
		}
	}
	switch bit := v.connectionMark(); {
	case how == "":
	case lets:
		v.add(note(fmt.Sprintf("the nft chain %s %s, and lets connections to VIPs through before", c.place(), how), "", ""))
	default:
		v.add(warning(fmt.Sprintf("the nft chain %s (hook %s) %s", c.place(), c.Hook, how),
			"vipd accepts its connections in iptables' own chains, and that does not overrule a drop in another table; "+
				"connections to VIPs carry a mark by which a rule there can let them through",
			fmt.Sprintf("nft insert rule %s ct mark and %#x == %#x accept", c.place(), bit, bit)))
	}
}

// dropsAll reports whether the rule drops or rejects without a condition.
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

// ends reports whether the rule has one of the verdicts.
func (r *nftRule) ends(verdicts ...string) bool {
	return slices.ContainsFunc(r.Expr, func(e map[string]json.RawMessage) bool {
		return slices.ContainsFunc(verdicts, func(verdict string) bool { return e[verdict] != nil })
	})
}

// named are the places whose packets the rule matches by their destination: frontends, and endpoints of some.
func (v *visit) named(r *nftRule) (places []string) {
	var hosts []netip.Prefix
	port := uint16(0) // any
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
			_ = json.Unmarshal(m.Right, &port) // a set is taken for any port
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	in := func(a netip.AddrPort) bool {
		return (port == 0 || port == a.Port()) && slices.ContainsFunc(hosts, func(p netip.Prefix) bool { return p.Contains(a.Addr()) })
	}
	for _, f := range v.Frontends {
		if in(netip.AddrPortFrom(f.Addr, f.Port)) {
			places = append(places, fmt.Sprintf("%s (%s)", f.Key, f.Service))
		}
		for _, b := range f.Backends {
			if in(b) {
				places = append(places, fmt.Sprintf("the endpoint %s of %s", b, f.Service))
			}
		}
	}
	slices.Sort(places)
	return slices.Compact(places)
}

// prefixes reads the addresses of a match: one, a network, or a set of both. What is named otherwise, as a named set, is left out.
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

// letsVIPs reports whether the rule accepts connections that were translated, or that carry vipd's mark.
func (v *visit) letsVIPs(r *nftRule) bool {
	accepts, known := false, false
	for _, e := range r.Expr {
		if _, ok := e["accept"]; ok {
			accepts = true
		}
		if text := string(e["match"]); text != "" {
			flat := strings.NewReplacer(" ", "", "\n", "").Replace(text)
			known = known || v.translates() && strings.Contains(flat, `"key":"status"`) && strings.Contains(flat, `"dnat"`) ||
				strings.Contains(flat, `"key":"mark"`) && strings.Contains(flat, fmt.Sprint(v.connectionMark()))
		}
	}
	return accepts && known
}
