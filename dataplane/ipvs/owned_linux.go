package ipvs

import (
	"maps"
	"slices"

	"vipd/balancer"
)

// Owned returns the virtual servers that the ledger in runDir names as vipd's, sorted. They need not be there any more.
// Without a ledger there are none.
func Owned(runDir string) ([]balancer.Key, error) {
	l, err := ledgerHere(runDir)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Keys(l.entries), balancer.Key.Compare), nil
}
