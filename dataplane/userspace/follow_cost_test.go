package userspace

import (
	"net/netip"
	"testing"
	"time"
)

// TestFollowingOffCostsLittle measures the cost of Follow for a connection while there are no
// followers: two checks of a counter. The checks must need less than 2 % of a connection's time.
// The ratio is so small that a single measurement can show it.
func TestFollowingOffCostsLittle(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("one"))
	vip := netip.MustParseAddrPort("127.58.30.1:8080")
	r := start(t, Options{})
	r.apply(frontendAt(vip.String(), s.addr))
	const connections, looks, batches = 100, 100_000, 10
	began := time.Now()
	for range connections {
		if _, err := askOnce(vip, ""); err != nil {
			t.Fatal(err)
		}
	}
	connection := time.Since(began) / connections
	followed, fastest := 0, time.Hour // other processes slow down some of the batches, but not all
	for range batches {
		began := time.Now()
		for range looks {
			if r.followers.some() {
				followed++
			}
		}
		fastest = min(fastest, time.Since(began))
	}
	if followed > 0 {
		t.Errorf("checks that found a follower = %d, want 0", followed)
	}
	two := 2 * float64(fastest) / looks
	t.Logf("two looks take %.1f ns, a connection %s: %.4f %%", two, connection, 100*two/float64(connection))
	if two > 0.02*float64(connection) {
		t.Error("the checks need at least 2 % of a connection's time, want less")
	}
}
