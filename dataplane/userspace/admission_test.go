package userspace

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
)

// TestAdmitterCounts opens and closes connections of two sources at specified times. Each attempt
// must be accepted or refused as its test case says, and closed connections must not count.
func TestAdmitterCounts(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	neighbor := netip.MustParseAddr("192.0.2.77")
	type attempt struct {
		client netip.Addr
		at     time.Duration
		ends   int // number of open connections that end before this attempt, in the order in which they were opened
		want   bool
	}
	for _, c := range []struct {
		limits   balancer.ClientLimits
		attempts []attempt
	}{
		{balancer.ClientLimits{Connections: 2}, []attempt{{a, 0, 0, true}, {b, 0, 0, true}, {a, 0, 0, false}, {b, 0, 1, true}, {b, 0, 0, false}}},
		{balancer.ClientLimits{SourceConnections: 1, SourcePrefix: 32}, []attempt{{a, 0, 0, true}, {a, 0, 0, false}, {b, 0, 0, true}, {neighbor, 0, 0, true}, {a, 0, 1, true}}},
		{balancer.ClientLimits{SourceConnections: 1, SourcePrefix: 24}, []attempt{{a, 0, 0, true}, {neighbor, 0, 0, false}, {b, 0, 0, true}}},
		{balancer.ClientLimits{SourceRate: balancer.Rate{N: 2, Per: time.Second}, SourcePrefix: 32}, []attempt{
			{a, 0, 0, true}, {a, 0, 0, true}, {a, 0, 0, false}, {b, 0, 0, true},
			{a, 400 * time.Millisecond, 0, false}, {a, 500 * time.Millisecond, 0, true}, {a, 500 * time.Millisecond, 0, false},
			{a, time.Hour, 0, true}, {a, time.Hour, 0, true}, {a, time.Hour, 0, false}, // credit must never exceed the rate
		}},
		{balancer.ClientLimits{Connections: 9, SourceConnections: 1, SourceRate: balancer.Rate{N: 1, Per: time.Minute}, SourcePrefix: 32}, []attempt{
			{a, 0, 0, true}, {a, time.Minute, 0, false}, {a, time.Minute, 1, true}, // a refused attempt must not use credit
		}},
	} {
		start, l := time.Now(), newAdmitter(admitterKey{})
		var open []admission
		for i, x := range c.attempts {
			for range x.ends {
				open[0].end()
				open = open[1:]
			}
			n, got := l.admit(x.client, c.limits, start.Add(x.at))
			if got != x.want {
				t.Errorf("limits %s, attempt %d by client %s at %s: admitted = %t, want %t", c.limits, i, x.client, x.at, got, x.want)
			}
			if got {
				open = append(open, n)
			}
		}
		for _, n := range open {
			n.end()
		}
		if l.total != 0 {
			t.Errorf("limits %s: counted connections after all were closed = %d, want 0", c.limits, l.total)
		}
	}
}

// TestAdmitterMemory opens connections from more sources than an admitter can count. Uncounted
// sources must have no limits, and sources without connections must be removed to make room.
func TestAdmitterMemory(t *testing.T) {
	l := balancer.ClientLimits{SourceRate: balancer.Rate{N: 1, Per: time.Second}, SourceConnections: 1, SourcePrefix: 32}
	a, now := newAdmitter(admitterKey{}), time.Now()
	var open []admission
	for i := range maxSources {
		n, within := a.admit(sourceN(i), l, now)
		if !within {
			t.Fatalf("first connection of source %d: admitted = false, want true", i)
		}
		open = append(open, n)
	}
	for range 3 {
		n, within := a.admit(sourceN(maxSources), l, now)
		if n.end(); !within || !a.full.isRecent() {
			t.Fatalf("source beyond the maximum number: admitted = %t, reported = %t; want true, true", within, a.full.isRecent())
		}
	}
	if len(a.sources) != maxSources {
		t.Errorf("counted sources = %d, want %d", len(a.sources), maxSources)
	}
	for _, n := range open {
		n.end()
	}
	late := now.Add(time.Second)
	for _, want := range []bool{true, false} {
		if _, within := a.admit(sourceN(maxSources), l, late); within != want {
			t.Errorf("connection of a source that replaced another source: admitted = %t, want %t", within, want)
		}
	}
	if len(a.sources) != 1 {
		t.Errorf("counted sources after the sweep = %d, want 1", len(a.sources))
	}
}

func sourceN(i int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
}
