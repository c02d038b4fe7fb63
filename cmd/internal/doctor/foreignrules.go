package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// foreignRule is another program's rule that exempts packets from tracking, translates connections,
// or changes connection marks.
type foreignRule struct {
	conditions
	// family is ip, ip6 or inet.
	family string
	// hook and priority belong to the base chain from which the rule is reached. first reports
	// whether the rule precedes vipd's jump in that chain.
	hook     string
	priority int
	first    bool
	// where describes the rule and its chain. remove is the command that deletes the rule.
	where, remove string

	untracks, translates bool
	// overwrites holds the connection mark bits that the rule changes.
	overwrites uint32
	// unmarked reports whether the rule matches only connections whose mark is 0. opening reports
	// whether it matches only new connections.
	unmarked, opening bool
}

// These are the netfilter priorities of iptables' tables.
const (
	rawTablePriority    = -300
	mangleTablePriority = -150
	natTablePriority    = -100
)

// maxFollowed limits how many chains are read per base chain, and thereby also the depth of jumps.
const maxFollowed = 32

// foreignRules reads other programs' rules that affect tracking, translation or marks. It skips
// vipd's and kube-proxy's nft tables.
func (o *observed) foreignRules(ctx context.Context) []foreignRule {
	if !o.Root {
		return nil // checkRules reports the error
	}
	var bases []*nftChain
	if o.has("nft") {
		objects, _ := o.nft(ctx, "list", "chains") // checkForeignChains reports the error
		for _, object := range objects {
			if object.Chain != nil && object.Chain.Hook != "" {
				bases = append(bases, object.Chain)
			}
		}
	}
	var all []foreignRule
	for _, c := range bases {
		if !c.fromTables() && !strings.HasPrefix(c.Table, "vipd") && c.Table != "kube-proxy" {
			r := nftReader{o: o, base: c, seen: map[string]bool{}}
			r.read(ctx, c.Name)
			all = append(all, r.found...)
		}
	}
	for _, b := range o.backends {
		b.readNAT(ctx, o)
		for _, t := range []struct {
			table    string
			priority int
		}{{"raw", rawTablePriority}, {"mangle", mangleTablePriority}, {"nat", natTablePriority}} {
			for _, hook := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
				r := tablesReader{b: b, table: t.table, hook: strings.ToLower(hook), priority: t.priority, first: true, seen: map[string]bool{}}
				r.read(hook)
				all = append(all, r.found...)
			}
		}
	}
	return all
}

// tablesReader collects the foreign iptables rules that are reachable from a base chain.
type tablesReader struct {
	b           *iptablesRules
	table, hook string
	priority    int
	first       bool
	seen        map[string]bool
	found       []foreignRule
}

func (r *tablesReader) read(name string) {
	if r.seen[name] || len(r.seen) > maxFollowed {
		return
	}
	r.seen[name] = true
	for _, rule := range r.b.chainOf(r.table, name).rules {
		to := target(rule)
		if strings.HasPrefix(to, "VIPD-") {
			r.first = false
			continue
		}
		family := "ip"
		if r.b.family == "ip6tables" {
			family = "ip6"
		}
		f := foreignRule{
			conditions: conditionsOf(rule), family: family, hook: r.hook, priority: r.priority, first: r.first,
			where:    fmt.Sprintf("%s, table %s, chain %s: %s", r.b.program, r.table, name, rule),
			remove:   fmt.Sprintf("%s -t %s -D %s %s", r.b.program, r.table, name, rule),
			unmarked: strings.Contains(rule, "-m connmark --mark 0x0 "), opening: strings.Contains(rule, "state NEW "),
		}
		words := strings.Fields(rule)
		f.untracks = to == "NOTRACK" || to == "CT" && slices.Contains(words, "--notrack")
		f.translates = to == "DNAT" || to == "REDIRECT" || strings.HasPrefix(to, "KUBE-SVC-") || strings.HasPrefix(to, "KUBE-EXT-")
		f.overwrites = connectionBits(words)
		if f.untracks || f.translates || f.overwrites != 0 {
			r.found = append(r.found, f)
		} else {
			r.read(to)
		}
	}
}

// connectionBits returns the connection mark bits that an iptables rule may change. words is the
// rule, split at spaces.
func connectionBits(words []string) uint32 {
	at := slices.Index(words, "CONNMARK")
	if at < 0 {
		return 0
	}
	option := func(name string) string {
		if i := slices.Index(words, name); i > at && i+1 < len(words) {
			return words[i+1]
		}
		return ""
	}
	number := func(text string) uint32 {
		n, err := strconv.ParseUint(text, 0, 32)
		if err != nil {
			return ^uint32(0)
		}
		return uint32(n)
	}
	if slices.Contains(words, "--save-mark") {
		return number(option("--ctmask")) // without a mask, the rule saves all bits
	}
	if set := option("--set-xmark"); set != "" {
		value, mask, masked := strings.Cut(set, "/")
		if !masked {
			return ^uint32(0)
		}
		return number(value) | number(mask)
	}
	return 0
}

// nftReader collects the foreign nft rules that are reachable from a base chain.
type nftReader struct {
	o     *observed
	base  *nftChain
	seen  map[string]bool
	found []foreignRule
}

func (r *nftReader) read(ctx context.Context, name string) {
	if r.seen[name] || len(r.seen) > maxFollowed {
		return
	}
	r.seen[name] = true
	chain := *r.base
	chain.Name = name
	objects, _ := r.o.nft(ctx, "list", "chain", chain.Family, chain.Table, chain.Name) // fails only if the chain was removed
	for _, object := range objects {
		if object.Rule == nil {
			continue
		}
		f := foreignRule{
			conditions: object.Rule.conditions(), family: chain.Family, hook: chain.Hook, priority: chain.Prio, first: true,
			where:      fmt.Sprintf("nft chain %s, hook %s", chain.place(), chain.Hook),
			remove:     fmt.Sprintf("nft delete rule %s handle %d", chain.place(), object.Rule.Handle),
			untracks:   object.Rule.ends("notrack"),
			translates: object.Rule.ends("dnat", "redirect"),
			overwrites: object.Rule.connectionBits(), unmarked: object.Rule.needsUnmarked(),
		}
		if f.untracks || f.translates || f.overwrites != 0 {
			r.found = append(r.found, f)
		}
		for _, to := range object.Rule.jumps() {
			r.read(ctx, to)
		}
	}
}

// jumps returns the chains to which a rule jumps.
func (r *nftRule) jumps() (names []string) {
	for _, e := range r.Expr {
		for _, kind := range []string{"jump", "goto"} {
			var to struct {
				Target string `json:"target"`
			}
			if e[kind] != nil && json.Unmarshal(e[kind], &to) == nil {
				names = append(names, to.Target)
			}
		}
	}
	return names
}

// needsUnmarked reports whether the rule matches only connections with the mark 0.
func (r *nftRule) needsUnmarked() bool {
	return slices.ContainsFunc(r.Expr, func(e map[string]json.RawMessage) bool {
		var m struct {
			Op   string `json:"op"`
			Left struct {
				CT struct {
					Key string `json:"key"`
				} `json:"ct"`
			} `json:"left"`
			Right json.RawMessage `json:"right"`
		}
		return e["match"] != nil && json.Unmarshal(e["match"], &m) == nil && m.Op == "==" && m.Left.CT.Key == "mark" && string(m.Right) == "0"
	})
}

// connectionBits returns the connection mark bits that the rule may change.
func (r *nftRule) connectionBits() (bits uint32) {
	for _, e := range r.Expr {
		var m struct {
			Key struct {
				CT struct {
					Key string `json:"key"`
				} `json:"ct"`
			} `json:"key"`
			Value json.RawMessage `json:"value"`
		}
		if e["mangle"] != nil && json.Unmarshal(e["mangle"], &m) == nil && m.Key.CT.Key == "mark" {
			bits |= changedBits(m.Value)
		}
	}
	return bits
}

// changedBits returns the bits in which a new connection mark may differ from the old mark. value
// is the nft expression for the new mark.
func changedBits(value json.RawMessage) uint32 {
	var expression struct {
		CT *struct {
			Key string `json:"key"`
		} `json:"ct"`
		Or  []json.RawMessage `json:"|"`
		And []json.RawMessage `json:"&"`
		Xor []json.RawMessage `json:"^"`
	}
	if json.Unmarshal(value, &expression) != nil {
		return ^uint32(0)
	}
	number := func(operands []json.RawMessage) (n uint32, known bool) {
		known = len(operands) == 2 && json.Unmarshal(operands[1], &n) == nil
		return n, known
	}
	if expression.CT != nil && expression.CT.Key == "mark" {
		return 0
	}
	if n, known := number(expression.Or); known {
		return changedBits(expression.Or[0]) | n
	}
	if n, known := number(expression.Xor); known {
		return changedBits(expression.Xor[0]) | n
	}
	if n, known := number(expression.And); known {
		return changedBits(expression.And[0]) | ^n
	}
	return ^uint32(0)
}
