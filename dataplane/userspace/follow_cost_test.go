package userspace

import (
	"net/netip"
	"testing"
	"time"
)

// TestFollowingOffCostsLittle: what access log, top and conns --follow add to a connection that nobody follows is two looks at a counter,
// as it begins and as it ends. They cost less than 2 % of a connection; measured in one run, as the ratio is 1:1,000 or less.
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
	followed, fastest := 0, time.Hour // whatever else the machine does makes some of them slow, and never all
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
		t.Errorf("%d looks found a follower", followed)
	}
	two := 2 * float64(fastest) / looks
	t.Logf("two looks take %.1f ns, a connection %s: %.4f %%", two, connection, 100*two/float64(connection))
	if two > 0.02*float64(connection) {
		t.Error("that is more than 2 %")
	}
}
