package definitions

import (
	"fmt"
	"net/netip"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// etcd can't compare claims of addresses and ports between services. So each transaction that brings about a claim writes
// PREFIX/claims/all, on the condition that no other writer has written below PREFIX/claims/ since all services were read. Versions
// before this one write other keys there and check this one, so both notice each other.

// StaleError reports that another service may have claimed the same address and port since all services were read.
type StaleError struct {
	Name balancer.Name
	// Checked is the revision of that reading.
	Checked int64
}

// Error names the service, and the way out.
func (e *StaleError) Error() string {
	return fmt.Sprintf("service %s: others have claimed addresses or ports since revision %d: look at all services again and repeat your change", e.Name, e.Checked)
}

// ownClaims is a range of revisions in which only this writer brought about claims. Until is the revision of its last one.
type ownClaims struct{ since, until int64 }

// bringsClaims reports whether a change gives a service, which may be nil before and after, a claim that it did not have.
func bringsClaims(before *Stored, wanted *balancer.Service, vips allocation) bool {
	had := map[balancer.Key]string{}
	if before != nil {
		had = withAllocated(before.Service, slices.Concat(vips.keep, vips.free)).Claims()
	}
	for claim := range withAllocated(wanted, vips.keep, vips.take...).Claims() {
		if _, is := had[claim]; !is {
			return true
		}
	}
	return false
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

// claimOps returns the operation of a transaction that brings about claims, its condition, and the question that is asked if the
// condition fails. If checked is 0, there is no condition.
func (w *Writer) claimOps(name balancer.Name, checked int64) (ifs []*etcdserverpb.Compare, then, otherwise []*etcdserverpb.RequestOp) {
	all := client.Folder(w.keys.Prefix + schema.ClaimFolder)
	then = []*etcdserverpb.RequestOp{client.Put(all.Key+"all", []byte(name), 0)}
	if checked == 0 {
		return nil, then, nil
	}
	last := w.lastClaim(checked)
	ask := &etcdserverpb.RangeRequest{Key: []byte(all.Key), RangeEnd: []byte(all.End), KeysOnly: true, Limit: 1, MinModRevision: last + 1}
	return []*etcdserverpb.Compare{notSince(all, last)}, then, []*etcdserverpb.RequestOp{client.Read(ask)}
}

// notSince is the condition that no key of a scope was written after a revision. A removal does not count.
func notSince(s client.Scope, revision int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.ModRevision(s.Key).WithRange(s.End), "<", revision+1)
	return c.GetCompare()
}

// lastClaim returns the last revision from checked on before which only this writer brought about claims.
func (w *Writer) lastClaim(checked int64) int64 {
	w.claimsMu.Lock()
	defer w.claimsMu.Unlock()
	if w.claims.since <= checked {
		return max(checked, w.claims.until)
	}
	return checked
}

// claimed notes that this writer brought about claims at a revision, and that no other has since checked. If checked is 0, others may
// have.
func (w *Writer) claimed(checked, revision int64) {
	w.claimsMu.Lock()
	defer w.claimsMu.Unlock()
	switch {
	case checked == 0:
		w.claims = ownClaims{revision, revision}
	case w.claims.since > checked || w.claims.until <= checked:
		w.claims = ownClaims{checked, revision}
	default:
		w.claims.until = max(w.claims.until, revision)
	}
}
