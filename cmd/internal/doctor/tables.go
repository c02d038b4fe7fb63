package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// backend is one of the two places where the kernel keeps iptables' rules, for one family.
type backend struct {
	// family is iptables or ip6tables.
	family string
	kind   config.IptablesBackend
	// program is what reads and writes it.
	program string
	tables  map[string]map[string]*chain
	// err is why it could not be read.
	err error
}

// chain is one chain of a table.
type chain struct {
	// policy is what happens at its end; "-" in chains that are not the kernel's own.
	policy string
	// rules as iptables-save writes them, without -A and the chain's name.
	rules []string
}

func families() []string { return []string{"iptables", "ip6tables"} }

// plain returns the backend of a program without a suffix, and its version; "" means it is not installed.
func (v *visit) plain(ctx context.Context, family string) (config.IptablesBackend, string) {
	if _, err := v.Look(family); err != nil {
		return "", ""
	}
	version, err := v.Run(ctx, family, "--version")
	if err != nil {
		return "", ""
	}
	if strings.Contains(version, "nf_tables") {
		return config.NFTBackend, strings.TrimSpace(version)
	}
	return config.LegacyBackend, strings.TrimSpace(version) // versions before 1.8 know no other, and do not say so
}

// readBackends reads the rules of both backends and families, of one table or, with "", of all. Of legacy it asks only for
// tables that are loaded, because asking for a table loads it.
func readBackends(ctx context.Context, v *visit, only string) []*backend {
	if !v.Root {
		return nil
	}
	var all []*backend
	for _, family := range families() {
		plain, _ := v.plain(ctx, family)
		for _, kind := range []config.IptablesBackend{config.NFTBackend, config.LegacyBackend} {
			b := &backend{family: family, kind: kind, program: family + "-" + string(kind), tables: map[string]map[string]*chain{}}
			if _, err := v.Look(b.program + "-save"); err != nil {
				if plain != kind {
					continue
				}
				b.program = family // some systems have the plain names only
			}
			switch {
			case kind == config.NFTBackend && only == "":
				b.read(ctx, v)
			case kind == config.NFTBackend:
				b.read(ctx, v, "-t", only)
			default:
				for _, table := range v.legacyTables(family) {
					if only == "" || table == only {
						b.read(ctx, v, "-t", table)
					}
				}
			}
			all = append(all, b)
		}
	}
	return all
}

func (v *visit) legacyTables(family string) []string {
	name := map[string]string{"iptables": "ip_tables_names", "ip6tables": "ip6_tables_names"}[family]
	return strings.Fields(v.text("/proc/thread-self/net/" + name))
}

// read adds what iptables-save prints.
func (b *backend) read(ctx context.Context, v *visit, args ...string) {
	saved, err := v.Run(ctx, b.program+"-save", args...)
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

// chainOf returns a chain; one without rules where there is none.
func (b *backend) chainOf(table, name string) *chain {
	if c := b.tables[table][name]; c != nil {
		return c
	}
	return &chain{}
}

// counts returns how many rules are vipd's, and how many others'. A jump into a chain of vipd is vipd's.
func (b *backend) counts() (ours, foreign int) {
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

// ours returns the backend that vipd uses for the family, or would: where its rules are, what the configuration says,
// or that of the host's other rules.
func (v *visit) ours(ctx context.Context, family string) config.IptablesBackend {
	var inUse []config.IptablesBackend
	for _, b := range v.backends {
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
	if v.Config.IPTables.Backend != config.AutoBackend {
		return v.Config.IPTables.Backend
	}
	plain, _ := v.plain(ctx, family)
	if len(inUse) == 0 || slices.Contains(inUse, plain) {
		return plain
	}
	return inUse[0]
}

// checkTools looks for the programs that vipd runs, and whose rules are where.
func checkTools(ctx context.Context, v *visit) {
	for _, family := range families() {
		plain, version := v.plain(ctx, family)
		if plain == "" {
			v.add(v.noTables(family))
			continue
		}
		if _, err := v.Look(family + "-restore"); err != nil {
			v.add(v.noTables(family + "-restore"))
			continue
		}
		v.add(fine(fmt.Sprintf("%s; vipd uses the %s backend", version, v.ours(ctx, family))))
	}
	if !v.Root {
		v.add(note("the host's rules were not looked at: that takes root", "", "sudo vipctl doctor"))
		return
	}
	for _, b := range v.backends {
		if b.err != nil {
			v.add(warning(fmt.Sprintf("the rules of %s can't be read: %s", b.program, oneLine(b.err)), "", ""))
		}
		v.mixed(ctx, b)
	}
}

func (v *visit) noTables(program string) Finding {
	f := warning(program+" is not installed",
		"without it services do not work where a policy of iptables is DROP", "apt-get install iptables")
	if v.Config.Mode == config.IPTablesMode {
		f.Level, f.Why = Problem, "the configuration asks for iptables mode"
	}
	return f
}

// mixed looks for others' rules in the backend that vipd does not use.
func (v *visit) mixed(ctx context.Context, b *backend) {
	_, foreign := b.counts()
	if use := v.ours(ctx, b.family); b.kind != use && foreign > 0 {
		v.add(warning(fmt.Sprintf("others have rules in the %s tables too (%s, rules: %d), and vipd uses %s", b.kind, b.family, foreign, use),
			"every packet passes both: what one drops the other can't accept, and the order of their NAT is undefined", b.program+"-save"))
	}
}
