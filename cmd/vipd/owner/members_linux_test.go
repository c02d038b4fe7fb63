package owner

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestOwnerWhileMemberIsCut cuts each member of etcd off from the other members, while hosts can
// still connect to it. Then the test kills the owner of a VIP, and moves the VIP. After each step,
// another host must answer for the VIP.
func TestOwnerWhileMemberIsCut(t *testing.T) {
	lab.Need(t, "nft", "ip")
	l := lab.New(t)
	hosts, _ := etcdkit.Hosts(l, 3)
	f := newFleetIn(t, l, "nftables", etcdkit.Options{Members: 3, Hosts: hosts})
	for i, m := range f.etcd.Members {
		for j, loss := range etcdkit.Losses() {
			if !wait.Soaking() && i != j {
				continue
			}
			t.Run(fmt.Sprintf("member %d %s", i, loss), func(t *testing.T) {
				f.waitForOwner()
				m.CutPeers(loss)
				defer m.HealPeers()
				f.cutOff(m, loss)
				began := time.Now()
				t.Logf("nobody answered for %s after a kill", f.meets(killed))
				t.Logf("nobody answered for %s at a move; both took %s", f.meets(planned), time.Since(began))
			})
		}
	}
}

// cutOff waits until the member cut does not answer reads and all other members do. It does not
// wait if the member loses packets in only one direction, because etcd may reach the member again
// over connections in the other direction.
func (f *fleet) cutOff(cut *etcdkit.Member, loss etcdkit.Loss) {
	f.t.Helper()
	for _, m := range f.etcd.Members {
		if m == cut && loss != etcdkit.Both {
			continue
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{f.etcd.URL(m.Addr())}, Logger: zap.NewNop()})
		if err != nil {
			f.t.Fatal(err)
		}
		wait.For(f.t, wait.Patience, m.Addr()+" to answer, or not if it is cut off", func() bool {
			ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
			defer cancel()
			_, err := client.Get(ctx, "x")
			return (err != nil) == (m == cut)
		})
		_ = client.Close() // a failure does not matter here
	}
}
