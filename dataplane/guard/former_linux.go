package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
)

// formerTable is what earlier versions kept in a table of iptables, if the guard was not in nf_tables. The acceptor's chains are
// among them.
type formerTable struct {
	name          string
	bases, chains []string
}

// formerTables are in the order in which they are removed.
func formerTables() []formerTable {
	return []formerTable{
		{"nat", []string{"POSTROUTING"}, []string{"VIPD-POSTROUTING", "VIPD-MASQUERADE"}},
		{"raw", []string{"PREROUTING", "OUTPUT"}, []string{"VIPD-UNTRACKED"}},
		{"mangle", []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}, []string{
			"VIPD-OTHERS", "VIPD-PREROUTING", "VIPD-OUTPUT", "VIPD-ARRIVING", "VIPD-LEAVING", "VIPD-SPECIAL", "VIPD-POLICY", "VIPD-OURS", "VIPD-MSS",
		}},
		{filterTable, []string{"INPUT", "FORWARD", "OUTPUT"}, []string{
			"VIPD-FORWARD", "VIPD-FORWARD-NEW", "VIPD-ONE-ARM", "VIPD-INPUT", "VIPD-OUTPUT", "VIPD-REFUSE",
			"VIPD-DIRECT-OUT", "VIPD-DIRECT-IN", "VIPD-DIRECT", "VIPD-DIRECT-TO", "VIPD-HELD", "VIPD-GUARD",
		}},
	}
}

// formerRedirects are the redirects of userspace mode.
func formerRedirects() []formerTable {
	return []formerTable{{"nat", []string{"PREROUTING", "OUTPUT"}, []string{"VIPD-US"}}}
}

// formerSets are the names of the ipsets of a family.
func formerSets(of inet.Family) (names []string) {
	for _, name := range []string{
		"arrived", "direct", "tunnels", "frontends", "special", "restricted", "silent", "masquerade", "never", "allowed",
		"roaming", "answers", "held", "pending", "owned", "served", "rejected",
	} {
		names = append(names, "vipd-"+name+of.Digit())
	}
	return names
}

// removeFormer removes the guard of a family that an earlier version has left in iptables and ipsets. Without its ipsets there is
// none.
func removeFormer(ctx context.Context, of inet.Family, log *slog.Logger) error {
	sets, err := ipset.Open()
	if err != nil {
		return nil //nolint:nilerr // without a way to ipsets there are none
	}
	defer sets.Close()
	found, err := existing(sets, of)
	if errors.Is(err, ipset.ErrUnsupported) || isUnavailable(err) {
		return nil
	}
	if len(found) == 0 || err != nil {
		return err
	}
	c := cleaner{ctx: ctx}
	c.tables(of, formerTables())
	if len(c.done) == 0 && len(c.errs) == 0 {
		return removeUnreferenced(sets, found, of, log)
	}
	c.sets(sets, found)
	if err := errors.Join(c.errs...); err != nil {
		return fmt.Errorf("removing the guard of an earlier version: %w", err)
	}
	log.Info("removed the guard of an earlier version", "family", of, "what", strings.Join(c.done, "; "))
	return nil
}

// removeUnreferenced destroys the ipsets of a former guard whose rules were not found. Rules that use an ipset are in a variant of iptables
// whose program is missing: they stay with the ipset, which is not an error, because trying again would not help.
func removeUnreferenced(sets *ipset.Conn, names []string, of inet.Family, log *slog.Logger) error {
	inUse := 0
	for _, name := range names {
		switch err := sets.Destroy(name); {
		case errors.Is(err, ipset.ErrInUse):
			inUse++
		case err != nil:
			return fmt.Errorf("removing the ipset %s of an earlier version: %w", name, err)
		}
	}
	if inUse > 0 {
		log.Warn("the guard of an earlier version stays, because the program of iptables that finds its rules is missing: apt-get install iptables",
			"family", of, "ipsets", inUse)
	}
	return nil
}

// existing are the ipsets of a family that the kernel has.
func existing(sets *ipset.Conn, of inet.Family) (found []string, err error) {
	for _, name := range formerSets(of) {
		switch _, err := sets.Header(name); {
		case err == nil:
			found = append(found, name)
		case !errors.Is(err, ipset.ErrNotFound):
			return nil, err
		}
	}
	return found, nil
}

// removeChains removes chains of a table, and what leads to them from base chains, in one transaction. It returns those that the
// kernel had. With dry it only looks.
func removeChains(ctx context.Context, tool filterTool, table string, bases, chains []string, dry bool) (had []string, err error) {
	for _, name := range chains {
		exists, err := tool.ChainExists(ctx, table, name)
		if err != nil {
			return nil, err
		}
		if exists {
			had = append(had, name)
		}
	}
	if len(had) == 0 || dry {
		return had, nil
	}
	jumps := map[string]string{}
	for _, base := range bases {
		jumps[base] = ""
	}
	lines, err := joins(ctx, tool, table, jumps, had)
	if err != nil {
		return nil, err
	}
	var empty []xtables.Chain // they may lead to each other
	for _, name := range had {
		empty, lines = append(empty, xtables.NewChain(name)), append(lines, "-X "+name)
	}
	return had, tool.Restore(ctx, xtables.Input(table, empty, lines...))
}

// cleaner removes what a process has left, or only looks, and notes what it does in words. It goes on after errors.
type cleaner struct {
	ctx  context.Context
	dry  bool
	done []string
	errs []error
}

// tables removes chains of a family from every variant of iptables, with those of trials that were cut short.
func (c *cleaner) tables(of inet.Family, tables []formerTable) {
	for _, tool := range xtables.Existing(c.ctx, of) {
		for _, t := range tables {
			if !tool.HasTable(t.name) {
				continue
			}
			had, err := removeChains(c.ctx, tool, t.name, t.bases, append(slices.Clone(t.chains), xtables.TrialChain), c.dry)
			if err != nil {
				c.errs = append(c.errs, err)
			} else if len(had) > 0 {
				c.done = append(c.done, fmt.Sprintf("remove from table %s (%s, %s): chains %s", t.name, of, tool.Variant(), strings.Join(had, ", ")))
			}
		}
	}
}

// sets destroys ipsets.
func (c *cleaner) sets(sets *ipset.Conn, names []string) {
	for _, name := range names {
		if !c.dry {
			if err := sets.DestroySoon(c.ctx, name); err != nil {
				c.errs = append(c.errs, err)
				continue
			}
		}
		c.done = append(c.done, "destroy ipset "+name)
	}
}

// Cleanup removes every guard that a process which is gone has left, also an earlier version's, and returns what it did in words, or,
// with dry, what it would do. It goes on after errors, and returns them together.
func Cleanup(ctx context.Context, dry bool) ([]string, error) {
	c := cleaner{ctx: ctx, dry: dry}
	c.nftables(tableName)
	sets, err := ipset.Open()
	if err == nil {
		defer sets.Close()
	}
	for _, of := range inet.Families() {
		c.tables(of, formerTables())
		if err != nil {
			continue // without a way to ipsets there are none
		}
		found, err := existing(sets, of)
		if err != nil && !errors.Is(err, ipset.ErrUnsupported) && !isUnavailable(err) {
			c.errs = append(c.errs, err)
		}
		c.sets(sets, found)
	}
	return c.done, errors.Join(c.errs...)
}

// nftables deletes the table of a name, and that of its trial, of both families.
func (c *cleaner) nftables(name string) {
	done, err := nft.Cleanup(c.dry, name, name+trialSuffix)
	c.done = append(c.done, done...)
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

// CleanupRedirects removes the redirects that a process which is gone has left, and returns what it did in words, or, with dry,
// what it would do.
func CleanupRedirects(ctx context.Context, dry bool) ([]string, error) {
	c := cleaner{ctx: ctx, dry: dry}
	c.nftables(redirectTableName)
	for _, of := range inet.Families() {
		c.tables(of, formerRedirects())
	}
	return c.done, errors.Join(c.errs...)
}
