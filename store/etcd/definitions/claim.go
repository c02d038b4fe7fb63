package definitions

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// etcd can't compare claims of addresses and ports between services. So each transaction that adds
// a claim writes PREFIX/claims/all, on the condition that no other writer has written below
// PREFIX/claims/ since all services were read. Earlier versions write other keys below
// PREFIX/claims/ and check this key, so old and new versions detect each other.

// StaleError means that another service may have claimed the same address and port after all
// services were read.
type StaleError struct {
	Name balancer.Name
	// Checked is the revision at which all services were read.
	Checked int64
}

// Error names the service and the remedy.
func (e *StaleError) Error() string {
	return fmt.Sprintf("service %s: others have claimed addresses or ports since revision %d: look at all services again and repeat your change", e.Name, e.Checked)
}

// ownClaims is a range of revisions in which only this writer has added claims. Until is the
// revision of the last of them.
type ownClaims struct {
	mu           sync.Mutex // guards the fields below
	since, until int64
}

// addsClaims reports whether a change gives a service a claim that it did not have. before and
// wanted may be nil.
func addsClaims(before *Stored, wanted *balancer.Service, vips allocation) bool {
	had := map[balancer.Key]string{}
	if before != nil {
		had = withAllocated(before.Service, slices.Concat(vips.keep, vips.free)).Claims()
	}
	for claim := range withAllocated(wanted, vips.keep, vips.take...).Claims() {
		if _, ok := had[claim]; !ok {
			return true
		}
	}
	return false
}

// withAllocated returns a copy of a service with addresses of pools.
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

// ops returns the operation of a transaction that adds claims, the condition of the transaction,
// and the read in case the condition fails. If checked is 0, there is no condition.
func (o *ownClaims) ops(keys schema.Keys, name balancer.Name, checked int64) (ifs []*etcdserverpb.Compare, then, otherwise []*etcdserverpb.RequestOp) {
	all := client.Folder(keys.Prefix + schema.ClaimFolder)
	then = []*etcdserverpb.RequestOp{client.Put(all.Key+"all", []byte(name), 0)}
	if checked == 0 {
		return nil, then, nil
	}
	last := o.last(checked)
	ask := &etcdserverpb.RangeRequest{Key: []byte(all.Key), RangeEnd: []byte(all.End), KeysOnly: true, Limit: 1, MinModRevision: last + 1}
	return []*etcdserverpb.Compare{notSince(all, last)}, then, []*etcdserverpb.RequestOp{client.Read(ask)}
}

// notSince returns the condition that no key of a scope was written after a revision. The condition
// ignores deletions.
func notSince(s client.Scope, revision int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.ModRevision(s.Key).WithRange(s.End), "<", revision+1)
	return c.GetCompare()
}

// last returns the end of the range of revisions from checked in which only this writer has added
// claims.
func (o *ownClaims) last(checked int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since <= checked {
		return max(checked, o.until)
	}
	return checked
}

// add records that this writer added claims at a revision, and that no other writer has done so
// since checked. If checked is 0, others may have added claims.
func (o *ownClaims) add(checked, revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case checked == 0:
		o.since, o.until = revision, revision
	case o.since > checked || o.until <= checked:
		o.since, o.until = checked, revision
	default:
		o.until = max(o.until, revision)
	}
}
