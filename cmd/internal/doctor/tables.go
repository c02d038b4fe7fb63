package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// iptablesRules holds the iptables rules of one backend, nft or legacy, for one IP family.
type iptablesRules struct {
	// family is "iptables" or "ip6tables".
	family string
	kind   config.IptablesBackend
	// program is the command that reads and writes the rules.
	program string
	tables  map[string]map[string]*chain
	// err is the reason why the rules could not be read.
	err error
}

type chain struct {
	// policy is the verdict for packets that reach the end of the chain. It is "-" if the chain is
	// not a built-in chain.
	policy string
	// rules are in iptables-save's syntax, without -A and the chain's name.
	rules []string
}

func families() []string { return []string{"iptables", "ip6tables"} }

// plain returns the backend that the program named family ("iptables" or "ip6tables") uses, and the
// program's version. Both are "" if the program is missing or can't be run.
func (s System) plain(ctx context.Context, family string) (config.IptablesBackend, string) {
	if !s.has(family) {
		return "", ""
	}
	version, err := s.Run(ctx, family, "--version")
	if err != nil {
		return "", ""
	}
	if strings.Contains(version, "nf_tables") {
		return config.NFTBackend, strings.TrimSpace(version)
	}
	return config.LegacyBackend, strings.TrimSpace(version) // versions before 1.8 have only this backend, and don't print its name
}

// readBackends reads the rules of both iptables backends and both families. only lists the tables
// to read. If nil, readBackends reads all tables. In the legacy backend, it reads only tables that
// are loaded, because reading a table would load it.
func readBackends(ctx context.Context, o *observed, only []string) []*iptablesRules {
	if !o.Root {
		return nil
	}
	var all []*iptablesRules
	for _, family := range families() {
		plain, _ := o.plain(ctx, family)
		for _, kind := range []config.IptablesBackend{config.NFTBackend, config.LegacyBackend} {
			b := &iptablesRules{family: family, kind: kind, program: family + "-" + string(kind), tables: map[string]map[string]*chain{}}
			if !o.has(b.program + "-save") {
				if plain != kind {
					continue
				}
				b.program = family // some systems lack the names that include the backend
			}
			switch {
			case kind == config.NFTBackend && only == nil:
				b.read(ctx, o)
			case kind == config.NFTBackend:
				for _, table := range only {
					b.read(ctx, o, "-t", table)
				}
			default:
				for _, table := range o.legacyTables(family) {
					if only == nil || slices.Contains(only, table) {
						b.read(ctx, o, "-t", table)
					}
				}
			}
			all = append(all, b)
		}
	}
	return all
}

func (s System) legacyTables(family string) []string {
	name := map[string]string{"iptables": "ip_tables_names", "ip6tables": "ip6_tables_names"}[family]
	return strings.Fields(s.text("/proc/thread-self/net/" + name))
}

// read runs the backend's iptables-save with args, and adds the rules in its output.
func (b *iptablesRules) read(ctx context.Context, o *observed, args ...string) {
	saved, err := o.Run(ctx, b.program+"-save", args...)
	if err != nil {
		b.err = err
		return
	}
	var table map[string]*chain
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = map[string]*chain{}
			b.tables[line[1:]] = table
		case strings.HasPrefix(line, ":"):
			if f := strings.Fields(line[1:]); len(f) > 1 && table != nil {
				table[f[0]] = &chain{policy: f[1]}
			}
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			if c := table[name]; c != nil {
				c.rules = append(c.rules, rule)
			}
		}
	}
}

// chainOf returns a chain, or an empty chain if it does not exist.
func (b *iptablesRules) chainOf(table, name string) *chain {
	if c := b.tables[table][name]; c != nil {
		return c
	}
	return &chain{}
}

// counts returns the number of vipd's rules, including jumps to its chains, and the number of other
// rules.
func (b *iptablesRules) counts() (ours, foreign int) {
	for _, chains := range b.tables {
		for name, c := range chains {
			for _, rule := range c.rules {
				if strings.HasPrefix(name, "VIPD-") || strings.Contains(rule, " VIPD-") {
					ours++
				} else {
					foreign++
				}
			}
		}
	}
	return ours, foreign
}

// ours returns the iptables backend that vipd uses, or would use, for the family. It is the backend
// that contains vipd's rules. If neither contains vipd's rules, it is the configured backend. If
// that is auto, it is the only backend with other rules. If both or neither have other rules, it is
// the backend of the program without a suffix, such as iptables.
func ours(ctx context.Context, o *observed, family string) config.IptablesBackend {
	var inUse []config.IptablesBackend
	for _, b := range o.backends {
		ours, foreign := b.counts()
		if b.family != family {
			continue
		}
		if ours > 0 {
			return b.kind
		}
		if foreign > 0 {
			inUse = append(inUse, b.kind)
		}
	}
	if o.Config.IPTables.Backend != config.AutoBackend {
		return o.Config.IPTables.Backend
	}
	plain, _ := o.plain(ctx, family)
	if len(inUse) == 0 || slices.Contains(inUse, plain) {
		return plain
	}
	return inUse[0]
}

// checkTools checks whether iptables, ip6tables and their restore programs are installed, and
// reports which backend vipd uses.
func checkTools(ctx context.Context, o *observed) (found []Finding) {
	for _, family := range families() {
		plain, version := o.plain(ctx, family)
		if plain == "" {
			found = append(found, noTables(o, family))
			continue
		}
		if !o.has(family + "-restore") {
			found = append(found, noTables(o, family+"-restore"))
			continue
		}
		found = append(found, fine(fmt.Sprintf("%s; vipd uses the %s backend", version, ours(ctx, o, family))))
	}
	return found
}

// checkMixedBackends looks for other programs' rules in the iptables backend that vipd does not
// use.
func checkMixedBackends(ctx context.Context, o *observed) (found []Finding) {
	if !o.Root {
		return []Finding{note("the host's rules were not read: only root can read them", "", "sudo vipctl doctor")}
	}
	for _, b := range o.backends {
		if b.err != nil {
			found = append(found, warning(fmt.Sprintf("the rules of %s can't be read: %s", b.program, oneLine(b.err)), "", ""))
		}
		_, foreign := b.counts()
		if use := ours(ctx, o, b.family); b.kind != use && foreign > 0 {
			found = append(found, warning(fmt.Sprintf("other programs also have rules in the %s tables (%s, rules: %d), and vipd uses %s", b.kind, b.family, foreign, use),
				"every packet passes the tables of both backends: an accept in one does not overrule a drop in the other, and the order of their NAT is undefined", b.program+"-save"))
		}
	}
	return found
}

func noTables(o *observed, program string) Finding {
	f := warning(program+" is not installed",
		"without it, services do not work if an iptables policy is DROP", "apt-get install iptables")
	if o.Config.Mode == config.IPTablesMode {
		f.Level, f.Why = Problem, "the configuration sets iptables mode"
	}
	return f
}
