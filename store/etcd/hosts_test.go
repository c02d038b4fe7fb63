package etcd_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// publishes returns a condition that is true if these nodes, and no others, publish the given
// addresses.
func publishes(want map[balancer.NodeName]string) func(store.Snapshot) bool {
	return func(s store.Snapshot) bool {
		for name, addresses := range want {
			n := s.Nodes.At(name)
			if n == nil || len(n.Addresses) != 1 || n.Addresses[0].String() != addresses {
				return false
			}
		}
		return s.Nodes.Len() == len(want)
	}
}

func atAddress(a string) balancer.Node {
	return balancer.Node{Addresses: []netip.Addr{netip.MustParseAddr(a)}}
}

// TestPublishedNodes publishes the addresses of nodes, changes them, and removes their keys.
// Another program also writes addresses. A source and a writer must see the addresses of each node
// until the node stops.
func TestPublishedNodes(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	f := follow(t, newSource(t, watch.Options{Config: p.config, Node: "n1", Patience: within}))
	n := appear(t, newWriter(t, p.config), "n1", "1.0", life)
	other := appear(t, newWriter(t, p.config), "n2", "1.0", life)
	n.Publish(atAddress("10.3.0.1"))
	other.Publish(atAddress("10.3.0.2"))
	f.wait("both nodes", publishes(map[balancer.NodeName]string{"n1": "10.3.0.1", "n2": "10.3.0.2"}))
	p.remove("/hosts/n2")
	f.wait("the removed key again", publishes(map[balancer.NodeName]string{"n1": "10.3.0.1"}))
	f.wait("the removed key again", publishes(map[balancer.NodeName]string{"n1": "10.3.0.1", "n2": "10.3.0.2"}))
	other.Publish(atAddress("10.3.0.3"))
	f.wait("another address", publishes(map[balancer.NodeName]string{"n1": "10.3.0.1", "n2": "10.3.0.3"}))
	p.put("/hosts/n3", `{"addresses":["10.3.0.9"],"later":true}`)
	p.put("/hosts/n4", `?`)
	s := f.wait("a newer version's node", publishes(map[balancer.NodeName]string{"n1": "10.3.0.1", "n2": "10.3.0.3", "n3": "10.3.0.9"}))
	if len(s.Problems) > 1 || len(s.Problems) == 1 && s.Problems[0].Origin.Key != "/vipda/hosts/n4" {
		t.Errorf("problems = %v, want none, or one about n4", s.Problems)
	}
	nodes, err := newWriter(t, p.config).Published(t.Context())
	if err != nil || nodes.Len() != 3 || !nodes.At("n2").Equal(atAddress("10.3.0.3")) {
		t.Errorf("published nodes = %d, %v, want 3, with the last address of n2", nodes.Len(), err)
	}
	other.stop()
	f.wait("the end of a node", publishes(map[balancer.NodeName]string{"n1": "10.3.0.1", "n3": "10.3.0.9"}))
}

// TestUnpublishedNode gives a node an earlier version's role, which may not publish addresses. The
// node must still write its presence. It must report the missing permission separately until it is
// granted.
func TestUnpublishedNode(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	old := role()
	old.Read, old.Write = slices.Clip(old.Read[:len(old.Read)-1]), slices.Clip(old.Write[:2])
	c.EnableAuth(old)
	p.client = c.Client()
	config := p.as(t, old)
	f := follow(t, newSource(t, watch.Options{Config: config, Node: "n1", Patience: within}))
	s := f.wait("the first state", connected)
	if len(s.Problems) != 1 || s.Problems[0].Origin.Key != "/vipda/hosts/" || !strings.Contains(s.Problems[0].Text, "services might claim other nodes' addresses") {
		t.Errorf("problems = %v, want one about the key hosts/", s.Problems)
	}
	n := appear(t, newWriter(t, config), "n1", "1.0", 3*time.Second)
	n.Publish(atAddress("10.3.0.1"))
	wait.For(t, within, "the missing right", func() bool {
		err := n.Unpublished()
		return err != nil && strings.Contains(err.Error(), "/vipda/hosts/n1") && n.last() == "<nil>"
	})
	p.try("have the node", func(ctx context.Context) error {
		answer, err := p.client.Get(ctx, "/vipda/nodes/n1/live")
		if err == nil && len(answer.Kvs) == 0 {
			err = errors.New("it is missing")
		}
		return err
	})
	p.try("grant the right", func(ctx context.Context) error {
		_, err := p.client.RoleGrantPermission(ctx, "n1", "/vipda/hosts/n1", "", clientv3.PermissionType(clientv3.PermReadWrite))
		return err
	})
	wait.For(t, within, "the addresses to be published", func() bool { return n.Unpublished() == nil })
	p.try("have its addresses", func(ctx context.Context) error {
		answer, err := p.client.Get(ctx, "/vipda/hosts/n1")
		if err == nil && len(answer.Kvs) == 0 {
			err = errors.New("they are missing")
		}
		return err
	})
}
