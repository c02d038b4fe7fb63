package ipvs

import (
	"context"
	"errors"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// removeOwned deletes the virtual servers that the ledger names. It returns descriptions of the
// steps, which a dry run does not execute.
func removeOwned(ctx context.Context, conn ipvsnl.Conn, l *ledger, dry bool) (done []string, err error) {
	there, err := listed(ctx, conn, maps.Keys(l.entries))
	if err != nil {
		return nil, err
	}
	var ops []ipvsnl.Op
	for _, k := range slices.SortedFunc(maps.Keys(l.entries), balancer.Key.Compare) {
		if _, ours := there[k]; ours {
			ops = append(ops, ipvsnl.Op{Verb: ipvsnl.DeleteService, Service: ipvsnl.Service{Key: k}})
		} else if !dry {
			l.drop(k)
		}
	}
	var errs []error
	if !dry && len(ops) > 0 {
		errs = conn.Do(ctx, ops)
	}
	var failed error
	for i, op := range ops {
		if errs != nil && errs[i] != nil && !absent(op, errs[i]) {
			failed = errors.Join(failed, errs[i])
			continue
		}
		done = append(done, "delete virtual server "+op.Service.Key.String())
		if !dry {
			l.drop(op.Service.Key)
		}
	}
	return done, failed
}
