package owners

import (
	"net"
	"sync"
	"testing"
	"time"

	"context"

	"vipd/balancer/failover"
	"vipd/store/etcd/client"
)

// TestWriteOfOwnershipIsUnsent requests a transaction while etcd's only member accepts no
// connection. The transaction must time out, and must count as unsent.
func TestWriteOfOwnershipIsUnsent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the test never accepts a connection
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	o, err := NewOwnership(client.Config{Endpoints: []string{"http://" + ln.Addr().String()}, Prefix: "/vipd"}, "n")
	if err != nil {
		t.Fatal(err)
	}
	o.ready.Store(true)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	running.Go(func() { _, _ = o.client.Members.Reach(ctx, nil) }) // as another user of the client might
	if outcome, _, err := o.Write(t.Context(), failover.Write{}); outcome != failover.Unsent || err == nil {
		t.Errorf("outcome = %v, %v, want Unsent with an error", outcome, err)
	}
}
