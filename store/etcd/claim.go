package etcd

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
)

// Two services must not come to claim one address, port and protocol, and etcd knows nothing of that. Who looked at all
// services and found nothing may be overtaken until the service is written. So the keys below PREFIX/claims/ are turned
// over: a transaction in which a service comes to claim something writes the slots of that, on the condition that no other
// has written them since the look. A slot says nothing by itself: what is claimed is in the services.
const (
	// claimSlots is how many slots there are. More than one claim may have the same: then a writer looks again in vain.
	claimSlots = 4096
	// mostSlots is how many slots a transaction writes. A service that claims more at once writes allClaims, and minds
	// every slot.
	mostSlots = 40
	// allClaims is the slot that every writer checks.
	allClaims = "all"
	// anySlot stands for all of them together, of which a Writer has a spell, too. There is no such key.
	anySlot = ""
)

// StaleError says that another service may have claimed what this one was to claim since that was looked at.
type StaleError struct {
	Name balancer.Name
	// Checked is the revision of that look.
	Checked int64
}

// Error names the service, and the way out.
func (e *StaleError) Error() string {
	return fmt.Sprintf("service %s: others have claimed addresses or ports since revision %d: look at all services again and repeat your change", e.Name, e.Checked)
}

// slot returns the name of a claim's slot.
func slot(claim balancer.Key) string {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s %d %s", claim.Addr, claim.Port, claim.Proto) // a hash takes everything
	return fmt.Sprintf("%03x", h.Sum32()%claimSlots)
}

// ownSpell is a time in which only this writer wrote a slot: from the revision since to until, its own write.
type ownSpell struct{ since, until int64 }

// claiming is a turn of slots: what the transaction does that brings claims about.
type claiming struct {
	name balancer.Name
	// since is when others' claims were looked at; 0 means they were not, and slots are written whatever they are.
	since int64
	// minds are the slots that must not have been written after a revision; writes are those that are written.
	minds  map[string]int64
	writes []string
	// everything: no slot at all may have been written after anySince.
	everything bool
	anySince   int64
}

// claimingOf returns the turn of a change that makes a service wanted, which may be nil as before may be.
func (w *Writer) claimingOf(c Change, before *Stored, wanted *balancer.Service, vips allocation) claiming {
	t := claiming{name: c.Name, since: c.Checked, minds: map[string]int64{}}
	if len(vips.take) > 0 && (t.since == 0 || vips.read < t.since) {
		t.since = vips.read
	}
	had := map[balancer.Key]string{}
	if before != nil {
		had = withAllocated(before.Service, slices.Concat(vips.keep, vips.free)).Claims()
	}
	w.slotMu.Lock()
	defer w.slotMu.Unlock()
	last := func(name string) int64 { // of the revisions from since on in which no other writer wrote it
		if own := w.slots[name]; own.since <= t.since {
			return max(t.since, own.until)
		}
		return t.since
	}
	for claim := range withAllocated(wanted, vips.keep, vips.take...).Claims() {
		if _, is := had[claim]; !is {
			name := slot(claim)
			t.minds[name] = last(name)
		}
	}
	t.writes = slices.Sorted(maps.Keys(t.minds))
	if len(t.writes) > mostSlots {
		t.minds, t.writes, t.everything, t.anySince = map[string]int64{}, []string{allClaims}, true, last(anySlot)
	}
	if len(t.writes) > 0 {
		t.minds[allClaims] = last(allClaims)
	}
	return t
}

// withAllocated returns a service with addresses of pools.
func withAllocated(s *balancer.Service, held []heldVIP, more ...netip.Addr) *balancer.Service {
	if s == nil {
		return nil
	}
	joined := *s
	joined.Allocated = slices.Clone(more)
	for _, h := range held {
		joined.Allocated = append(joined.Allocated, h.addr)
	}
	return &joined
}

// ops are what a transaction does for the turn, on which conditions, and what it asks where they are not met.
func (t *claiming) ops(keys Keys) (ifs []*etcdserverpb.Compare, then, otherwise []*etcdserverpb.RequestOp) {
	all := folder(keys.prefix + claimFolder)
	for _, name := range t.writes {
		then = append(then, put(all.key+name, []byte(t.name), 0))
	}
	if t.since == 0 || len(t.minds) == 0 {
		return nil, then, nil
	}
	if t.everything {
		ifs = append(ifs, notSince(all, t.anySince))
	}
	for _, name := range slices.Sorted(maps.Keys(t.minds)) {
		ifs = append(ifs, notSince(scope{key: all.key + name}, t.minds[name]))
	}
	ask := &etcdserverpb.RangeRequest{Key: []byte(all.key), RangeEnd: []byte(all.end), KeysOnly: true, MinModRevision: t.since + 1}
	return ifs, then, []*etcdserverpb.RequestOp{read(ask)}
}

// notSince is the condition that no key of a scope was written after a revision. A removal does not count.
func notSince(s scope, revision int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.ModRevision(s.key).WithRange(s.end), "<", revision+1)
	return c.GetCompare()
}

// stale reports whether another writer has written a slot that the turn minds after a revision, which the answer to what ops
// asks tells.
func (w *Writer) stale(t *claiming, answer *etcdserverpb.TxnResponse, checked int64) bool {
	w.slotMu.Lock()
	defer w.slotMu.Unlock()
	for _, part := range answer.Responses {
		for _, kv := range part.GetResponseRange().GetKvs() {
			name := strings.TrimPrefix(string(kv.Key), w.keys.prefix+claimFolder)
			bound, minded := t.minds[name]
			if t.everything {
				bound, minded = t.since, true
				if own := w.slots[name]; own.since <= t.since && own.until == kv.ModRevision {
					continue // the next attempt knows
				}
			}
			if minded && kv.ModRevision > bound && kv.ModRevision > checked {
				return true
			}
		}
	}
	if t.everything {
		w.spellLocked(anySlot, t.since, answer.Header.Revision)
	}
	return false
}

// took notes that the turn's slots were written at a revision.
func (w *Writer) took(t claiming, revision int64) {
	if t.since == 0 {
		return // others may have written them before
	}
	w.slotMu.Lock()
	defer w.slotMu.Unlock()
	for _, name := range t.writes {
		w.spellLocked(name, t.since, revision)
	}
	if t.everything {
		w.spellLocked(anySlot, t.since, revision)
	}
}

// spellLocked notes that no other writer wrote a slot from one revision to another.
func (w *Writer) spellLocked(name string, since, until int64) {
	own := w.slots[name]
	if own.since > since || own.until <= since {
		own.since = since
	}
	own.until = until
	if w.slots == nil {
		w.slots = map[string]ownSpell{}
	}
	w.slots[name] = own
}
