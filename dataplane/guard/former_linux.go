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

// formerTable describes the part of an earlier version's guard that one iptables table contains,
// including the acceptor's chains.
type formerTable struct {
	name          string
	bases, chains []string
}

// formerTables returns the tables in the order of their removal.
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

// formerRedirects returns the iptables tables that contain redirects of userspace mode.
func formerRedirects() []formerTable {
	return []formerTable{{"nat", []string{"PREROUTING", "OUTPUT"}, []string{"VIPD-US"}}}
}

// formerSets returns the names of the ipsets that an earlier version created for a family.
func formerSets(family inet.Family) (names []string) {
	for _, name := range []string{
		"arrived", "direct", "tunnels", "frontends", "special", "restricted", "silent", "masquerade", "never", "allowed",
		"roaming", "answers", "held", "pending", "owned", "served", "rejected",
	} {
		names = append(names, "vipd-"+name+family.Digit())
	}
	return names
}

// removeFormer removes the guard of one family that an earlier version left in iptables and ipsets.
// Without its ipsets, such a guard does not exist.
func removeFormer(ctx context.Context, of inet.Family, log *slog.Logger) error {
	sets, err := ipset.Open()
	if err != nil {
		return nil //nolint:nilerr // a kernel without ipsets has no earlier version's guard
	}
	defer sets.Close()
	found, err := existing(sets, of)
	if errors.Is(err, ipset.ErrUnsupported) || isUnavailable(err) {
		return nil
	}
	if len(found) == 0 || err != nil {
		return err
	}
	c := cleanup{ctx: ctx}
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

// removeUnreferenced destroys an earlier guard's ipsets after its rules were not found. If rules
// still use an ipset, it remains, because the iptables program that could list these rules is
// missing. This is not an error, because a retry would not help.
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
		log.Warn("the guard of an earlier version can't be removed, because the iptables program that finds its rules is missing: apt-get install iptables",
			"family", of, "ipsets", inUse)
	}
	return nil
}

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

// removeChains removes chains and the jumps to them from a table, in one transaction. It returns
// the chains that existed. If dry is set, it changes nothing.
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
	lines, err := jumpLines(ctx, tool, table, jumps, had)
	if err != nil {
		return nil, err
	}
	var empty []xtables.Chain // emptied first, because chains may jump to each other
	for _, name := range had {
		empty, lines = append(empty, xtables.NewChain(name)), append(lines, "-X "+name)
	}
	return had, tool.Restore(ctx, xtables.Input(table, empty, lines...))
}

// cleanup removes an earlier process's guard, and records a description of each step in done. If
// dry is set, it only records the steps. It continues after errors.
type cleanup struct {
	ctx  context.Context
	dry  bool
	done []string
	errs []error
}

// tables removes a family's chains from every variant of iptables, including the chains of
// interrupted trials.
func (c *cleanup) tables(of inet.Family, tables []formerTable) {
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

func (c *cleanup) sets(sets *ipset.Conn, names []string) {
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

// Cleanup removes every guard that earlier processes and versions left. It returns a description of
// each step. A dry run changes nothing. Cleanup continues after errors, and returns all of them.
func Cleanup(ctx context.Context, dry bool) ([]string, error) {
	c := cleanup{ctx: ctx, dry: dry}
	c.nftables(tableName)
	sets, err := ipset.Open()
	if err == nil {
		defer sets.Close()
	}
	for _, of := range inet.Families() {
		c.tables(of, formerTables())
		if err != nil {
			continue // the kernel does not support ipsets
		}
		found, err := existing(sets, of)
		if err != nil && !errors.Is(err, ipset.ErrUnsupported) && !isUnavailable(err) {
			c.errs = append(c.errs, err)
		}
		c.sets(sets, found)
	}
	return c.done, errors.Join(c.errs...)
}

// nftables deletes a table, and the table of its trial, in both families.
func (c *cleanup) nftables(name string) {
	done, err := nft.Cleanup(c.dry, name, name+trialSuffix)
	c.done = append(c.done, done...)
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

// CleanupRedirects removes an earlier process's redirects. It returns a description of each step. A
// dry run changes nothing.
func CleanupRedirects(ctx context.Context, dry bool) ([]string, error) {
	c := cleanup{ctx: ctx, dry: dry}
	c.nftables(redirectTableName)
	for _, of := range inet.Families() {
		c.tables(of, formerRedirects())
	}
	return c.done, errors.Join(c.errs...)
}
