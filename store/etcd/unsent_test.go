package etcd

import (
	"testing"

	"vipd/balancer/failover"
)

// TestWriteOfOwnershipIsUnsent: where a connection is being made for somebody else, which takes as long as etcd does, a transaction of an
// owner waits no longer than it may, and is known not to have been sent.
func TestWriteOfOwnershipIsUnsent(t *testing.T) {
	o, err := NewOwnership(Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/vipd"}, "n")
	if err != nil {
		t.Fatal(err)
	}
	o.ready.Store(true)
	o.writer.members.choosing <- struct{}{}
	if outcome, _, err := o.Write(t.Context(), failover.Write{}); outcome != failover.Unsent || err == nil {
		t.Errorf("got %v, %v", outcome, err)
	}
}
