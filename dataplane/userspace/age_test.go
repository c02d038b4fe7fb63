package userspace

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
)

// TestMaxConnectionAge keeps connections busy until vipd closes them. Each must be reset when it
// reaches its maximum age, or at most 10 % earlier, even if the age is set while the connection is
// open.
func TestMaxConnectionAge(t *testing.T) {
	const age = 2 * time.Second
	s := serveAt(t, "127.0.0.1:0", named("a"))
	d := start(t, Options{})
	f := frontendAt("127.77.9.6:9100", s.addr)
	f.MaxConnectionAge = age
	later := frontendAt("127.77.9.6:9101", s.addr)
	d.apply(f, later)
	for _, x := range []netip.AddrPort{f.AddrPort(), later.AddrPort()} {
		begun := time.Now()
		c := mustConnect(t, x)
		c.mustAsk(t)
		if x == later.AddrPort() {
			d.apply(with(later, func(g *balancer.Frontend) { g.MaxConnectionAge = age }))
		}
		for {
			if _, err := c.ask("hello"); err != nil {
				if !isReset(err) {
					t.Errorf("connection to %s: error = %v, want a reset", x, err)
				}
				break
			}
			time.Sleep(10 * time.Millisecond) // keeps the connection busy
		}
		if lived := time.Since(begun); lived < age*9/10 {
			t.Errorf("connection to %s: age at its reset = %s, want at least 90 %% of %s", x, lived, age)
		}
	}
}

// TestMaxConnectionAgeSpread compares the remaining lifetimes of connections that started at the
// same time. The lifetimes must be spread over the last tenth of the maximum age, and another
// process must calculate the same ones.
func TestMaxConnectionAgeSpread(t *testing.T) {
	now := time.Now()
	shortest, longest := time.Hour, time.Duration(0)
	for port := range 2000 {
		c := conn{from: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), uint16(port)), since: now}
		left := c.timeLeft(time.Hour, now)
		shortest, longest = min(shortest, left), max(longest, left)
		c.since = now.Round(0)
		if again := c.timeLeft(time.Hour, now.Round(0)); again != left {
			t.Fatalf("remaining lifetime in another process = %s, want %s", again, left)
		}
	}
	if shortest < 54*time.Minute || shortest > 55*time.Minute || longest < 59*time.Minute || longest > time.Hour {
		t.Errorf("lifetimes of connections = %s to %s, want 54m to 1h", shortest, longest)
	}
}
