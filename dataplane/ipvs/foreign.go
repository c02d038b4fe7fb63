package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// foreignCheck reports whether a key has a virtual server that the ledger does not name. It must be
// called before the key is added to the ledger. If vipd relied only on the kernel's refusal to
// create a duplicate, a process that was killed before the refusal would leave a foreign virtual
// server in the ledger.
type foreignCheck func(ctx context.Context, k balancer.Key) (bool, error)

// askLocked is a [foreignCheck] for few keys. It sends a message for each key.
func (d *Dataplane) askLocked(ctx context.Context, k balancer.Key) (bool, error) {
	_, err := d.conn.Service(ctx, k)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return false, nil
	}
	return err == nil, err
}

// listing returns a [foreignCheck] for many keys. It lists all virtual servers on its first call.
func (d *Dataplane) listing() foreignCheck {
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
		if !there[k] { // if the list omitted the virtual server, the kernel will refuse to create it again
			return false, nil
		}
		return d.askLocked(ctx, k) // it may have been removed since
	}
}

// blockedByForeign reports whether s can't be created because a foreign virtual server exists or
// may exist.
func (r *round) blockedByForeign(s *server, taken foreignCheck) bool {
	there, err := taken(r.ctx, s.key)
	switch {
	case err != nil:
		r.errs[s] = err
	case there:
		r.errs[s] = r.d.foreign(r.ctx, s.key)
	}
	return r.errs[s] != nil
}

// foreign returns the error of a frontend whose virtual server another program has created.
func (d *Dataplane) foreign(ctx context.Context, k balancer.Key) error {
	for other, s := range d.ranges {
		if k.Port.IsRange() && other != k && s.exists && ipvsnl.Mark(other) == ipvsnl.Mark(k) {
			return fmt.Errorf("%s is not served, because it needs the same firewall mark as %s: use other ports for one of them", k, other)
		}
	}
	what := "another program created this virtual server"
	if v, err := d.conn.Service(ctx, k); err == nil {
		what += " (" + v.Scheduler
		if all, err := d.conn.Destinations(ctx, k); err == nil {
			what += ", " + describeDestinations(all)
		}
		what += ")"
	}
	return fmt.Errorf("%s is not served: %s, and vipd does not change it. Remove it (ipvsadm -D %s), or give the service another address or port",
		k, what, command(k))
}

func describeDestinations(all []ipvsnl.DestinationState) string {
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
		text += fmt.Sprintf(" and %d more", len(all)-most)
	}
	return text
}
