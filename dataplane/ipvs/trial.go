package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
)

// try creates, reads and deletes a virtual server with a destination at documentation addresses
// (RFC 5737, RFC 3849), in each family. It returns an error if neither family works. If only one
// family works, the reason is stored for the other family's frontends.
func (d *Dataplane) try(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var failed error
	for _, f := range inet.Families() {
		if err := d.tryLocked(ctx, f); uncertain(err) || err != nil && ctx.Err() != nil {
			return err
		} else if err != nil {
			d.unavailable[f] = err
			failed = errors.Join(failed, err)
		}
	}
	if len(d.unavailable) == len(inet.Families()) {
		return failed
	}
	if failed != nil {
		d.log.Warn("one address family is not served", "err", failed)
	}
	return nil
}

// maxTrials is the maximum number of ports that a trial attempts to use, because other processes'
// trials may use the first ports.
const maxTrials = 8

func trialKey(f inet.Family) balancer.Key {
	k := balancer.Key{Addr: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8}), Port: 9, Proto: balancer.TCP}
	if f == inet.IPv4 {
		k.Addr = netip.AddrFrom4([4]byte{198, 51, 100, 0})
	}
	return k
}

func (d *Dataplane) tryLocked(ctx context.Context, family inet.Family) (err error) {
	k := trialKey(family)
	to := netip.AddrPortFrom(k.Addr.Next(), 9)
	for range maxTrials {
		err = d.tryAtLocked(ctx, k, to)
		if !errors.Is(err, ipvsnl.ErrExists) {
			break
		}
		k.Port++
	}
	if err != nil {
		return fmt.Errorf("IPVS mode can't serve %s here: %w", family, err)
	}
	return nil
}

func (d *Dataplane) tryAtLocked(ctx context.Context, k balancer.Key, to netip.AddrPort) (err error) {
	if d.ledger.owns(k) { // an earlier trial was interrupted
		if err := d.endTrialLocked(ctx, k); err != nil {
			return err
		}
	}
	d.ledger.set(k, record{})
	if err := d.ledger.save(); err != nil {
		return err
	}
	s := ipvsnl.Service{Key: k, Scheduler: string(d.caps.Nearest[balancer.Random])}
	add := []ipvsnl.Op{
		{Verb: ipvsnl.AddService, Service: s},
		{Verb: ipvsnl.AddDestination, Service: s, Destination: ipvsnl.Destination{Addr: to, Forward: balancer.NATForward, Weight: 1}},
	}
	if errs := d.conn.Do(ctx, add[:1]); errs != nil {
		if !uncertain(errs[0]) {
			d.ledger.drop(k)
		}
		return errors.Join(errs[0], d.ledger.save())
	}
	defer func() { err = errors.Join(err, d.endTrialLocked(ctx, k)) }()
	if errs := d.conn.Do(ctx, add[1:]); errs != nil {
		return errs[0]
	}
	got, err := d.conn.Service(ctx, k)
	if err != nil {
		return err
	}
	states, err := d.conn.Destinations(ctx, k)
	if err != nil {
		return err
	}
	if got.Service != s || len(states) != 1 || states[0].Destination != add[1].Destination {
		return fmt.Errorf("virtual server %s was created with scheduler %s to %s, but the kernel shows scheduler %s %s", k, s.Scheduler, to, got.Scheduler, describeDestinations(states))
	}
	return nil
}

func (d *Dataplane) endTrialLocked(ctx context.Context, k balancer.Key) error {
	op := ipvsnl.Op{Verb: ipvsnl.DeleteService, Service: ipvsnl.Service{Key: k}}
	if errs := d.conn.Do(ctx, []ipvsnl.Op{op}); errs != nil && !absent(op, errs[0]) {
		return errs[0]
	}
	d.ledger.drop(k)
	return d.ledger.save()
}
