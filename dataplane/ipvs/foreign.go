package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// taken reports whether there is a virtual server at a key that the ledger does not name. It is asked before the ledger
// names the key: were that left to the answer to our own making it, a process that is killed before the answer comes would
// leave a ledger that names another's.
type taken func(ctx context.Context, k balancer.Key) (bool, error)

// askLocked is the taken of few keys: a message for each.
func (d *Dataplane) askLocked(ctx context.Context, k balancer.Key) (bool, error) {
	_, err := d.conn.Service(ctx, k)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return false, nil
	}
	return err == nil, err
}

// listing returns the taken of many keys: it lists all virtual servers when it is first asked, if ever.
func (d *Dataplane) listing() taken {
	var there map[balancer.Key]bool
	return func(ctx context.Context, k balancer.Key) (bool, error) {
		if there == nil {
			services, err := d.conn.Services(ctx)
			if err != nil {
				return false, fmt.Errorf("reading virtual servers: %w", err)
			}
			there = make(map[balancer.Key]bool, len(services))
			for _, v := range services {
				there[v.Key] = true
			}
		}
		if !there[k] { // or left out of the list: making it is refused then
			return false, nil
		}
		return d.askLocked(ctx, k) // it may have gone since
	}
}

// takenBy reports whether s can't be made, because another program's virtual server is there or may be.
func (r *round) takenBy(s *server, taken taken) bool {
	there, err := taken(r.ctx, s.key)
	switch {
	case err != nil:
		r.errs[s] = err
	case there:
		r.errs[s] = r.d.foreign(r.ctx, s.key)
	}
	return r.errs[s] != nil
}

// foreign is the error for a frontend whose virtual server another program has made.
func (d *Dataplane) foreign(ctx context.Context, k balancer.Key) error {
	what := "another program has made a virtual server there"
	if v, err := d.conn.Service(ctx, k); err == nil {
		what += " (" + v.Scheduler
		if all, err := d.conn.Destinations(ctx, k); err == nil {
			what += ", " + some(all)
		}
		what += ")"
	}
	return fmt.Errorf("%s is not served: %s, and vipd does not touch what it did not make; remove it (ipvsadm -D %s), or give the service another address or port",
		k, what, command(k))
}

// some names a few destinations.
func some(all []ipvsnl.DestinationState) string {
	const most = 3
	if len(all) == 0 {
		return "without destinations"
	}
	var names []string
	for _, s := range all[:min(most, len(all))] {
		names = append(names, s.Addr.String())
	}
	text := "to " + strings.Join(names, ", ")
	if len(all) > most {
		text += fmt.Sprintf(" and %d others", len(all)-most)
	}
	return text
}
