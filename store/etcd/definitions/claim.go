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

// etcd can't compare claims of addresses and ports between services. So each transaction that adds
// a claim writes PREFIX/claims/all, on the condition that no other writer has written below
// PREFIX/claims/ since all services were read. Earlier versions write other keys below
// PREFIX/claims/ and check this key, so old and new versions detect each other's claims.

// StaleError means that another service may have claimed the same address and port after all
// services were read.
type StaleError struct {
	Name balancer.Name
	// Checked is the revision at which all services were read.
	Checked int64
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("service %s: other services have claimed addresses or ports since revision %d: check all services and repeat your change", e.Name, e.Checked)
}

// addsClaims reports whether a change gives a service a claim that it did not have. Both before and
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

// withAllocated returns a copy of a service whose addresses from pools are the addresses in more
// and in held.
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

// For a transaction that adds claims, claimOps returns the operation, the condition, and the read
// that runs if the condition fails. If checked is nil, there is no condition.
func claimOps(keys schema.Keys, name balancer.Name, checked *int64) (ifs []*etcdserverpb.Compare, then, otherwise []*etcdserverpb.RequestOp) {
	all := client.Folder(keys.Prefix + schema.ClaimFolder)
	then = []*etcdserverpb.RequestOp{client.Put(all.Key+"all", []byte(name), 0)}
	if checked == nil {
		return nil, then, nil
	}
	ask := &etcdserverpb.RangeRequest{Key: []byte(all.Key), RangeEnd: []byte(all.End), KeysOnly: true, Limit: 1, MinModRevision: *checked + 1}
	return []*etcdserverpb.Compare{notSince(all, *checked)}, then, []*etcdserverpb.RequestOp{client.Read(ask)}
}

// notSince returns the condition that no key in a scope was written after a revision. The condition
// ignores deletions.
func notSince(s client.Scope, revision int64) *etcdserverpb.Compare {
	c := clientv3.Compare(clientv3.ModRevision(s.Key).WithRange(s.End), "<", revision+1)
	return c.GetCompare()
}
