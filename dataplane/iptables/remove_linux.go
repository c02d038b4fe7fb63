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

// remove deletes everything of this dataplane from the nat table: first what leads there, so that no connection enters
// what is half gone.
func remove(ctx context.Context, tool *xtables.Tool) error {
	chains, err := tool.Chains(ctx, table, isOurs)
	if err != nil || len(chains) == 0 {
		return err
	}
	if err := rejoin(ctx, tool, "", nil, nil); err != nil {
		return err
	}
	_, err = tool.Write(ctx, table, deletion(chains))
	return err
}

// deletion first empties chains, for they may lead to each other, and then deletes them all.
func deletion(chains []string) (groups []xtables.Group) {
	for _, name := range chains {
		groups = append(groups, xtables.Group{Write: []xtables.Chain{{Name: name}}})
	}
	for _, name := range chains {
		groups = append(groups, xtables.Group{Delete: []string{name}})
	}
	return groups
}

// removeSets deletes the sets of one family. Rules must not look at them any more. It begins with the last and stops at
// the first failure: setsOf finds what is left.
func removeSets(ctx context.Context, sets *ipset.Conn, family inet.Family) error {
	names, err := setsOf(sets, family)
	for _, name := range slices.Backward(names) {
		if err := sets.DestroySoon(ctx, name); err != nil {
			return err
		}
	}
	return err
}

// Cleanup removes everything of this dataplane from this host, in both variants, or, with dry, only looks. It says what
// it does, such as "delete 12 chains of iptables from the table nat (ipv4, nft)".
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
		return done, failed // without a way to sets there are none
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

// setsOf lists the sets of one family, with that of a trial that was cut short.
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
