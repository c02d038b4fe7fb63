package nftables

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/fake"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestCountsWhileFrontendsChange opens connections while frontends change continuously. Each
// connection must be counted.
func TestCountsWhileFrontendsChange(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	l := lab.New(t)
	l.Host().AddAddr("lo", "10.96.0.1/32")
	l.Host().AddAddr("lo", "10.0.0.1/32")
	d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: 0x8000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(context.Background(), false) }()
	frontend := func(key string, n byte) *balancer.Frontend {
		f := fake.Frontend(key)
		f.Backends = []balancer.Backend{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 8080), State: balancer.Active, Weight: 1}}
		return f
	}
	asked := frontend("10.96.0.1:53/udp", 1)
	if _, err = d.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := []dataplane.Change{{Key: asked.Key, New: asked}}
	for n := range 10000 { // with this many frontends, reading the counters takes longer than making a change
		f := frontend(fmt.Sprintf("10.97.%d.%d:80", n>>8, n&255), 2)
		all = append(all, dataplane.Change{Key: f.Key, New: f})
	}
	if err = d.Apply(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	defer changing.Wait()
	defer stop()
	changing.Go(func() {
		was := (*balancer.Frontend)(nil)
		for n := byte(2); ctx.Err() == nil; n = 5 - n {
			f := frontend("10.96.0.2:80", n)
			if err := d.Apply(t.Context(), []dataplane.Change{{Key: f.Key, Old: was, New: f}}); err != nil {
				t.Error(err)
				return
			}
			was = f
		}
	})
	const times = 20
	for range times {
		c, err := net.Dial("udp", asked.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	wait.For(t, wait.Patience, "the count of all connections", func() bool {
		n := uint64(0)
		for _, f := range d.Counters() {
			for _, b := range f.Backends {
				if b.Backend == asked.Backends[0].Addr {
					n += b.Connections
				}
			}
		}
		return n == times
	})
}

// TestCountsWithoutRangeTargets counts a connection to a range with another target_port, and then
// flushes the map range-targets. The connection must count for its endpoint before and after the
// repair.
func TestCountsWithoutRangeTargets(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	l := lab.New(t)
	l.Host().AddAddr("lo", "10.96.0.1/32")
	l.Host().AddAddr("lo", "10.0.0.1/32")
	d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: 0x8000})
	if err != nil {
		t.Fatal(err)
	}
	f := fake.Frontend("10.96.0.1:7000-7003/udp")
	f.Open = []balancer.PortRange{f.Key.Port}
	f.Backends = []balancer.Backend{{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), State: balancer.Active, Weight: 1}}
	h := &foreignHistory{T: t, d: d, want: map[balancer.Key]*balancer.Frontend{f.Key: f}}
	defer func() { _ = d.Close(context.Background(), false) }()
	h.repair()
	c, err := net.Dial("udp", "10.96.0.1:7001")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err = c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		y := d.families[0]
		got, err := y.readCounts(y.countersLocked())
		if n := got[total(labelOf(f), f.Backends[0].Addr)].All; err != nil || n != 1 || len(got) != 1 {
			t.Errorf("counts %s = %v, %v, want 1 for %s", when, got, err, f.Backends[0].Addr)
		}
	}
	check("before the damage")
	load(h, "flush map ip vipd range-targets\n")
	if reason := h.intact(); reason == "" {
		t.Error("Intact after the damage = no reason, want one")
	}
	check("after the damage")
	h.repair()
	check("after the repair")
}
