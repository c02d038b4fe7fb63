package ipvs

import (
	"context"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// Recorded returns the virtual servers that the ledger in runDir names, sorted. They may have been
// removed since. A missing ledger is empty.
func Recorded(runDir string) ([]balancer.Key, error) {
	l, err := ledgerHere(runDir)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Keys(l.entries), balancer.Key.Compare), nil
}

// HasForeign reports whether there are virtual servers that the ledger in runDir does not name.
func HasForeign(ctx context.Context, runDir string) (bool, error) {
	l, err := ledgerHere(runDir)
	if err != nil {
		return false, err
	}
	keys, others, err := ipvsnl.Names(ctx, maps.Keys(l.entries))
	if err != nil {
		return false, err
	}
	return others > 0 || slices.ContainsFunc(keys, func(k balancer.Key) bool { return !l.owns(k) }), nil
}
