package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// Apply makes each key what its change says: the chains that differ are written in as few transactions as the kernel
// takes well, those of one frontend in one. Then flows that conntrack still leads elsewhere are dropped.
func (d *Dataplane) Apply(ctx context.Context, batch []dataplane.Change) error {
	d.traffic.start()
	parts := map[xtables.Family][]dataplane.Change{}
	for _, c := range batch {
		parts[familyOf(c.Key)] = append(parts[familyOf(c.Key)], c)
	}
	failed := dataplane.KeyErrors{}
	var all error
	for _, name := range xtables.Families() {
		part := parts[name]
		y := d.families[name]
		switch {
		case len(part) == 0:
		case y == nil:
			for _, c := range part {
				if c.New != nil {
					failed[c.Key] = d.missing[name]
				}
			}
		default:
			if err := y.apply(ctx, part, failed); err != nil {
				all = errors.Join(all, fmt.Errorf("writing rules of %s: %w", name, err))
			}
		}
	}
	if all != nil {
		return all
	}
	d.forgetFlows(ctx, batch, failed)
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// mostBad is how many frontends of a batch the kernel may refuse before all of it counts as failed.
const mostBad = 8

func (y *family) apply(ctx context.Context, batch []dataplane.Change, failed dataplane.KeyErrors) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.look.forget()
	bad := map[balancer.Key]error{}
	for {
		p := y.planLocked(batch, bad)
		if err := y.prepareSets(p); err != nil {
			return err
		}
		folded := y.foldLocked(ctx, p)
		done, err := y.tool.Write(ctx, table, p.groups)
		p.folded = folded()
		y.noteLocked(p, done)
		if err == nil {
			break
		}
		var op *xtables.OpError
		if done >= len(p.groups) || !p.owners[done].Addr.IsValid() || !errors.As(err, &op) || xtables.IsBusy(err) || len(bad) == mostBad {
			return err
		}
		bad[p.owners[done]] = err
	}
	maps.Copy(failed, bad)
	return y.ensureJumps(ctx)
}

// ensureJumps comes after the first rules, so that the root is never entered before it leads anywhere.
func (y *family) ensureJumps(ctx context.Context) error {
	if y.jumps > 0 {
		return nil
	}
	for _, hook := range hooks() {
		if err := y.tool.EnsureJump(ctx, table, hook, true, "-j", rootChain); err != nil {
			return err
		}
	}
	y.jumps = len(hooks()) // others there may be are found by the next comparison
	return nil
}

// prepareSets makes the sticky sets that a plan needs, and takes out of them what they hold of backends whose slots
// others get: their clients would all come to one backend.
func (y *family) prepareSets(p *plan) error {
	for ; y.slots < p.slots; y.slots++ {
		if err := y.sets.CreateTimed(stickySet(y.slots, y.is4()), ipset.HashIPPortIP, ipset.Family(y.name)); err != nil {
			return err
		}
	}
	for key, slots := range p.clear {
		for _, slot := range slots {
			if err := y.clear(stickySet(slot, y.is4()), key); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear takes the clients of one frontend out of a set.
func (y *family) clear(set string, key balancer.Key) error {
	entries, err := y.sets.List(set)
	if err != nil {
		return err
	}
	var theirs []ipset.Entry
	for _, e := range entries {
		if e.Addr == key.Addr && e.Port == key.Port && e.Proto == setProtocol(key.Proto) {
			theirs = append(theirs, e)
		}
	}
	return y.sets.Delete(set, theirs)
}

func setProtocol(p balancer.Protocol) ipset.Protocol {
	switch p {
	case balancer.UDP:
		return ipset.UDP
	case balancer.SCTP:
		return ipset.SCTP
	default:
		return ipset.TCP
	}
}
