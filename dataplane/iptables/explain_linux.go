package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
)

// Explain implements [dataplane.Explains]. It follows the rules of f, and looks the client up in
// the sets.
func (d *Dataplane) Explain(ctx context.Context, f *balancer.Frontend, from netip.AddrPort) (dataplane.Explanation, error) {
	client := from.Addr()
	name := inet.Of(f.Addr)
	y := d.families[name]
	if y == nil {
		return dataplane.Explanation{}, d.missing[name]
	}
	front, err := y.front(ctx, f.Key)
	if err != nil {
		return dataplane.Explanation{}, err
	}
	e := dataplane.Explanation{Choice: choiceOf(f), Shares: odds(f, client)}
	chain := dataplane.Object{Name: "chain " + frontChain(f.Key) + " of table nat", Missing: front == nil}
	if front == nil {
		e.Objects = []dataplane.Object{chain}
		return e, nil
	}
	if len(front.below) > 0 {
		chain.Says = fmt.Sprintf("with %d chains below it", len(front.below))
	}
	e.Objects = append(e.Objects, chain)
	counted := y.counts(ctx)
	for _, s := range e.Shares {
		o := dataplane.Object{Name: "DNAT rules of " + string(f.Service), Says: s.Backend.String()}
		e.Objects = append(e.Objects, o.Counted(counted[counters.BackendKey{Port: counters.Port{Service: f.Service, Name: f.Port}, Addr: s.Backend}].All))
	}
	return e, y.findSticky(f, client, front.slots, &e)
}

// front returns the state of a frontend. It waits until the current change is complete or ctx is
// done.
func (y *familyRules) front(ctx context.Context, k balancer.Key) (*front, error) {
	const pause = 10 * time.Millisecond
	for !y.mu.TryLock() {
		if !wake.Sleep(ctx, pause) {
			return nil, errors.New("the rules are being changed; try again")
		}
	}
	defer y.mu.Unlock()
	if f := y.fronts[k]; f != nil {
		copied := *f
		return &copied, nil
	}
	return nil, nil
}

// findSticky looks the client up in the sticky sets, in the order of the rules.
func (y *familyRules) findSticky(f *balancer.Frontend, client netip.Addr, slots map[netip.AddrPort]int, e *dataplane.Explanation) error {
	if f.AffinityTimeout <= 0 {
		return nil
	}
	entry := ipset.Element{Addr: f.Addr, Proto: ipset.ProtocolOf(f.Proto), Port: f.Key.Port.First(), Second: client}
	for _, w := range targetsOf(f) {
		set := stickySet(slots[w.addr], inet.Of(f.Addr))
		in, err := y.sets.Has(set, entry)
		if err != nil {
			return err
		}
		if !in {
			continue
		}
		members, err := y.sets.Members(set)
		if err != nil {
			return err
		}
		for _, m := range members {
			if m.Element == entry {
				e.Sticky, e.Left = w.addr, m.Left
				e.Objects = append(e.Objects, dataplane.Object{Name: "ipset " + set, Says: fmt.Sprintf("contains the client for another %s", m.Left)})
				return nil
			}
		}
	}
	return nil
}
