package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// removeOwned deletes the virtual servers that the ledger names, or, with dry, only looks which are there. It says what it
// does.
func removeOwned(ctx context.Context, conn ipvsnl.Conn, l *ledger, dry bool) (done []string, err error) {
	services, err := conn.Services(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading virtual servers: %w", err)
	}
	there := map[balancer.Key]bool{}
	for _, s := range services {
		there[s.Key] = l.owns(s.Key)
	}
	var ops []ipvsnl.Op
	for _, k := range slices.SortedFunc(maps.Keys(l.entries), balancer.Key.Compare) {
		switch {
		case there[k]:
			ops = append(ops, ipvsnl.Op{Verb: ipvsnl.DeleteService, Service: ipvsnl.Service{Key: k}})
		case !dry:
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
