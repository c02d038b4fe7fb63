package doctor

import (
	"context"
	"encoding/json"
	"fmt"
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
	Expr []map[string]json.RawMessage `json:"expr"`
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
func (v *visit) foreignChains(ctx context.Context) []Finding {
	if _, err := v.Look("nft"); err != nil {
		return []Finding{{Level: Note, What: "others' nft tables were not looked at: nft is not installed", Mend: "apt-get install nftables"}}
	}
	objects, err := v.nft(ctx, "list", "chains")
	if err != nil {
		return []Finding{{Level: Warning, What: "others' nft tables can't be read: " + oneLine(err), Mend: "nft list chains"}}
	}
	var found []Finding
	for _, o := range objects {
		c := o.Chain
		if c == nil || c.Type != "filter" || c.fromTables() || !slices.Contains([]string{"forward", "input", "prerouting", "output"}, c.Hook) {
			continue
		}
		if f, drops := v.foreignChain(ctx, c); drops {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		found = append(found, Finding{Level: OK, What: "no nft table of others drops what it does not know"})
	}
	return found
}

// foreignChain is the finding about a chain that drops, by its policy or by a rule without conditions, what its rules do
// not accept.
func (v *visit) foreignChain(ctx context.Context, c *nftChain) (Finding, bool) {
	how := ""
	if c.Policy == "drop" {
		how = "has the policy drop"
	}
	objects, err := v.nft(ctx, "list", "chain", c.Family, c.Table, c.Name)
	if err != nil && how == "" {
		return Finding{Level: Warning, What: fmt.Sprintf("the nft chain %s can't be read: %s", c.place(), oneLine(err))}, true
	}
	lets := false
	for _, o := range objects {
		if o.Rule == nil {
			continue
		}
		lets = lets || v.letsVIPs(o.Rule)
		if how == "" && o.Rule.dropsAll() {
			how = "ends in a rule that drops or rejects all"
		}
	}
	switch {
	case how == "":
		return Finding{}, false
	case lets:
		return Finding{Level: Note, What: fmt.Sprintf("the nft chain %s %s, and lets connections to VIPs through before", c.place(), how)}, true
	}
	bit := v.connectionMark()
	return Finding{
		Level: Warning, What: fmt.Sprintf("the nft chain %s (hook %s) %s", c.place(), c.Hook, how),
		Why: "vipd accepts its connections in iptables' own chains, and that does not overrule a drop in another table; " +
			"connections to VIPs carry a mark by which a rule there can let them through",
		Mend: fmt.Sprintf("nft insert rule %s ct mark and %#x == %#x accept", c.place(), bit, bit),
	}, true
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

// letsVIPs reports whether the rule accepts connections that were translated, or that carry vipd's mark.
func (v *visit) letsVIPs(r *nftRule) bool {
	accepts, known := false, false
	for _, e := range r.Expr {
		if _, ok := e["accept"]; ok {
			accepts = true
		}
		if text := string(e["match"]); text != "" {
			var flat strings.Builder
			for _, letter := range text {
				if letter != ' ' && letter != '\n' {
					flat.WriteRune(letter)
				}
			}
			known = known || v.translates() && strings.Contains(flat.String(), `"key":"status"`) && strings.Contains(flat.String(), `"dnat"`) ||
				strings.Contains(flat.String(), `"key":"mark"`) && strings.Contains(flat.String(), fmt.Sprint(v.connectionMark()))
		}
	}
	return accepts && known
}
