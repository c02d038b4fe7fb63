package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// remove deletes everything that belongs to this dataplane from the nat table. It starts with the
// jumps, so no connection passes partly deleted chains.
func remove(ctx context.Context, tool *xtables.Tool) error {
	chains, err := tool.Chains(ctx, table, isOurs)
	if err != nil || len(chains) == 0 {
		return err
	}
	if err := replaceJumps(ctx, tool, "", nil, nil); err != nil {
		return err
	}
	_, err = tool.Write(ctx, table, deletion(chains))
	return err
}

// deletion returns groups that first empty the chains, which may jump to each other, and then
// delete them.
func deletion(chains []string) (groups []xtables.Group) {
	for _, name := range chains {
		groups = append(groups, xtables.Group{Write: []xtables.Chain{{Name: name}}})
	}
	for _, name := range chains {
		groups = append(groups, xtables.Group{Delete: []string{name}})
	}
	return groups
}

// removeSets deletes a family's sets, which rules must no longer use. It starts with the last set
// and stops at the first failure, so setsOf still finds the remaining sets.
func removeSets(ctx context.Context, sets *ipset.Conn, family inet.Family) error {
	names, err := setsOf(sets, family)
	for _, name := range slices.Backward(names) {
		if err := sets.DestroySoon(ctx, name); err != nil {
			return err
		}
	}
	return err
}

// Cleanup removes everything that belongs to this dataplane from the host, in both variants. It
// describes each step, which a dry run does not execute: "delete 12 chains of iptables mode from
// the table nat (ipv4, nft)".
func Cleanup(ctx context.Context, dry bool) (done []string, err error) {
	var failed error
	for _, name := range inet.Families() {
		for _, tool := range xtables.Existing(ctx, name) {
			chains, err := tool.Chains(ctx, table, isOurs)
			if err == nil && len(chains) > 0 {
				done = append(done, fmt.Sprintf("delete %d chains of iptables mode from the table nat (%s, %s)", len(chains), name, tool.Variant()))
				if !dry {
					err = remove(ctx, tool)
				}
			}
			failed = errors.Join(failed, err)
		}
	}
	sets, err := ipset.Open()
	if err != nil {
		return done, failed // a kernel without ipsets
	}
	defer sets.Close()
	for _, name := range inet.Families() {
		names, err := setsOf(sets, name)
		if err == nil && !dry {
			err = removeSets(ctx, sets, name)
		}
		for _, set := range names {
			done = append(done, "destroy ipset "+set)
		}
		failed = errors.Join(failed, err)
	}
	return done, failed
}

// setsOf returns a family's sets, including the set of an interrupted trial.
func setsOf(sets *ipset.Conn, family inet.Family) (names []string, err error) {
	for n := -1; ; n++ {
		name := trialSet(family)
		if n >= 0 {
			name = stickySet(n, family)
		}
		_, err := sets.Header(name)
		switch {
		case err == nil:
			names = append(names, name)
		case errors.Is(err, ipset.ErrNotFound) && n < 0:
		case errors.Is(err, ipset.ErrNotFound), errors.Is(err, ipset.ErrUnsupported):
			return names, nil
		default:
			return names, err
		}
	}
}
