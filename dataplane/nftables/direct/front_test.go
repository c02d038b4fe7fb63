package direct

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/fake"
)

// frontend returns a frontend with forward = "dr". It has an endpoint for each weight. An endpoint
// with weight 0 drains.
func frontend(weights ...int) *balancer.Frontend {
	f := fake.Frontend("10.96.0.1:80", fake.Forward(balancer.DRForward))
	f.Scheduler, f.DrainTimeout, f.Backends = balancer.Maglev, time.Minute, nil
	for i, w := range weights {
		b := balancer.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80), State: balancer.Active, Weight: w}
		if w == 0 {
			b.State = balancer.Draining
		}
		f.Backends = append(f.Backends, b)
	}
	return f
}

func share(f *front, endpoint byte) (n int) {
	for _, a := range f.slots {
		if a == netip.AddrFrom4([4]byte{10, 0, 0, endpoint}) {
			n++
		}
	}
	return n
}

// TestSlotsOfOtherEndpoints adds an endpoint, changes its weight, and removes it. No slot may move
// between the other endpoints. The endpoint's number of slots must match its weight.
func TestSlotsOfOtherEndpoints(t *testing.T) {
	now, last := time.Now(), netip.AddrFrom4([4]byte{10, 0, 0, 4})
	was := newFront(frontend(1, 1, 1), nil, now)
	for _, c := range []struct {
		weights []int
		want    int
	}{{[]int{1, 1, 1, 1}, 256}, {[]int{1, 1, 1, 3}, 512}, {[]int{1, 1, 1, 1}, 256}, {[]int{1, 1, 1}, 0}} {
		next := newFront(frontend(c.weights...), was, now)
		for i, a := range next.slots {
			if a != was.slots[i] && a != last && was.slots[i] != last {
				t.Errorf("weights %v: slot %d moved from %s to %s, want it unchanged", c.weights, i, was.slots[i], a)
			}
		}
		if got := share(next, 4); got < c.want*8/10 || got > c.want*12/10 {
			t.Errorf("weights %v: slots of the last endpoint = %d, want about %d", c.weights, got, c.want)
		}
		was = next
	}
}

// TestDrainKeepsSlots drains an endpoint, which must keep its slots until drain_timeout has passed.
// If all endpoints drain, the chain must refuse new connections.
func TestDrainKeepsSlots(t *testing.T) {
	now := time.Now()
	was := newFront(frontend(1, 1), nil, now)
	drained := newFront(frontend(0, 1), was, now)
	if got, want := share(drained, 1), share(was, 1); got != want || drained.chain.closing {
		t.Errorf("slots of a draining endpoint = %d, closing = %v; want %d, false", got, drained.chain.closing, want)
	}
	if later := now.Add(time.Minute - time.Second); drained.ended(later) || share(newFront(frontend(0, 1), drained, later), 1) == 0 {
		t.Error("the drain ended before drain_timeout had passed")
	}
	if later := now.Add(time.Minute); !drained.ended(later) || share(newFront(frontend(0, 1), drained, later), 1) != 0 {
		t.Error("slots after the drain > 0, want 0")
	}
	if all := newFront(frontend(0, 0), drained, now); !all.chain.closing || share(all, 1)+share(all, 2) != slotCount {
		t.Errorf("closing = %v, slots = %d; want true, %d", all.chain.closing, share(all, 1)+share(all, 2), slotCount)
	}
	if fresh := newFront(frontend(0, 0), nil, now); fresh != nil {
		t.Error("newFront without active endpoints returned a front, want nil")
	}
}

// TestHashOfFrontends calls newFront for frontends with different settings. The chain's name must
// show the protocol, whether the hash includes the client's port, and whether clients are
// restricted.
func TestHashOfFrontends(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*balancer.Frontend)
		want string
	}{
		"rr":         {func(f *balancer.Frontend) { f.Scheduler = balancer.RoundRobin }, "tcp-port-4"},
		"mh":         {func(*balancer.Frontend) {}, "tcp-client-4"},
		"affinity":   {func(f *balancer.Frontend) { f.Scheduler, f.AffinityTimeout = balancer.Random, time.Hour }, "tcp-client-4"},
		"udp":        {func(f *balancer.Frontend) { f.Scheduler, f.Proto = balancer.Random, balancer.UDP }, "udp-client-4"},
		"restricted": {fake.Sources("10.0.0.0/8"), "tcp-client-4-restricted"},
		"all":        {fake.Sources("10.0.0.0/8", "0.0.0.0/0"), "tcp-client-4"},
	} {
		f := frontend(1)
		if c.edit(f); newFront(f, nil, time.Now()).chain.String() != c.want {
			t.Errorf("%s: chain = %s, want %s", name, newFront(f, nil, time.Now()).chain, c.want)
		}
	}
}
