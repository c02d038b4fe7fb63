package userspace

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"vipd/dataplane/counters"
)

// TestTallyForgets removes a backend, and then its service. Their counts must be retained for
// counters.Retention after the last use, and must then be deleted.
func TestTallyForgets(t *testing.T) {
	d, err := New(Options{Intercept: Bind, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	gone, stays := netip.MustParseAddrPort("127.0.0.1:9"), netip.MustParseAddrPort("127.0.0.1:10")
	both, one := frontendAt("127.77.8.4:9000", gone, stays), frontendAt("127.77.8.4:9000", stays)
	f := newFrontend(d, both.Key)
	d.frontends[both.Key] = f
	f.configure(both, d.counterLocked(both))
	counted := f.conf.Load().counter
	counted.connections.Add(3)
	b := counted.backend(gone)
	b.total.Add(3)
	b.active.Add(1)
	now := time.Now()
	after := func(passed time.Duration, backends int) {
		t.Helper()
		now = now.Add(passed)
		d.forgetLocked(now)
		if n := len(counted.backends); n != backends {
			t.Errorf("backends with counts = %d, want %d", n, backends)
		}
	}
	f.configure(one, d.counterLocked(one))
	after(2*counters.Retention, 2) // the removed backend still has an open connection
	b.active.Add(-1)
	after(counters.Retention, 2)
	after(time.Second, 1)
	if n := d.Counters()[0].Connections; n != 3 {
		t.Errorf("counted connections of the service = %d, want 3", n)
	}
	delete(d.frontends, both.Key)
	now = time.Now() // the call to Counters was the last use of the counts
	after(counters.Retention-time.Minute, 1)
	after(2*time.Minute, 0)
	if n := len(d.counters); n != 0 {
		t.Errorf("services with counts = %d, want 0", n)
	}
}
