package etcd

import (
	"fmt"
	"time"
)

// tenure is a node's hold on keys of its own, which another daemon of the same name may have.
type tenure struct {
	lease *lease
	// rival is who holds the keys instead, met when that was first seen.
	rival foreign
	met   time.Time
}

// heldBy is the error of who finds the node's key in other hands. What a former run has left ends with its lease, and
// is not told before.
func (t *tenure) heldBy(other foreign) error {
	if other.lease == 0 {
		return fmt.Errorf("%s was written by another program, without a lease: delete it", t.lease.key)
	}
	if other != t.rival {
		t.rival, t.met = other, time.Now()
	}
	if time.Since(t.met) < t.lease.ttl+t.lease.ttl/2 {
		return errPatience
	}
	return fmt.Errorf("%s is held by another vipd: give each host its own node name", t.lease.key)
}
