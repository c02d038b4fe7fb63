package names_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
)

// TestSchedule changes the TTL and the outcome of a lookup. The lookup must be repeated after the
// TTL, but at least once per interval. After failures, the pauses between lookups must grow.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, t.TempDir())
		defer n.end()
		state := func(want string, wantChanges int) {
			t.Helper()
			synctest.Wait()
			n.mu.Lock()
			changes := n.changes
			n.mu.Unlock()
			if got := n.found("a", true); got != want || changes != wantChanges {
				t.Errorf("after %s: endpoints = %s with %d changes, want %s with %d", time.Since(n.start), got, changes, want, wantChanges)
			}
		}
		asked := func(name, want string) {
			t.Helper()
			if got := n.times(name); got != want {
				t.Errorf("lookups of %s at %s, want %s", name, got, want)
			}
		}
		n.answers("", 20*time.Second, "192.0.2.1")
		n.service("a", "ttl", "10.96.0.1")
		n.discovers("b", "interval", 10*time.Second, "10.96.0.2")
		n.found("a", true)
		time.Sleep(41 * time.Second)
		state("192.0.2.1", 2) // an unchanged answer has no effect
		asked("ttl", "[0s 20s 40s]")
		asked("interval", "[0s 10s 20s 30s 40s]")

		n.answers("SERVFAIL", 0)
		time.Sleep(90 * time.Second)
		state("192.0.2.1 ! SERVFAIL", 4)
		asked("ttl", "[1m0s 1m1s 1m3s 1m7s 1m15s 1m31s 2m1s]")
		n.times("interval")

		n.answers("", 0, "192.0.2.2") // a TTL of 0 counts as one second
		time.Sleep(21 * time.Second)
		state("192.0.2.2", 6)
		asked("ttl", "[2m31s 2m32s]")
		n.times("interval")

		n.answers("", 30*24*time.Hour, "192.0.2.2")
		time.Sleep(2 * time.Hour)
		asked("ttl", "[2m33s 1h2m33s]")
		n.times("interval")

		n.in.Services = n.in.Services.Delete("a")
		n.discovers("c", "interval", 5*time.Second, "10.96.0.3")
		state("", 6)
		at := time.Since(n.start)
		time.Sleep(11 * time.Second)
		asked("interval", fmt.Sprintf("[%s %s %s]", at, at+5*time.Second, at+10*time.Second))
		n.in.Services = n.in.Services.Delete("c")
		state("", 6)
		time.Sleep(21 * time.Second)
		asked("interval", fmt.Sprintf("[%s %s %s]", at+11*time.Second, at+21*time.Second, at+31*time.Second))
		asked("ttl", "[]")
	})
}

// TestAddedAgain removes a lookup and adds it again at the same moment. The new lookup must be made
// immediately.
func TestAddedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, t.TempDir())
		defer n.end()
		n.answers("", time.Hour, "192.0.2.1")
		for range 20 {
			n.in.Services = n.in.Services.Delete("db")
			n.found("db", true)
			n.service("db", "db.example.org", "10.96.0.10")
			n.found("db", true)
			synctest.Wait()
			if got, want := n.found("db", true), "192.0.2.1"; got != want {
				t.Errorf("lookup that was added again: endpoints = %q, want %q", got, want)
			}
		}
	})
}

// TestManyNames looks up many names, and then none. No goroutine may remain.
func TestManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, t.TempDir())
		defer n.end()
		n.answers("", time.Minute, "192.0.2.1")
		for range 3 {
			for i := range 2000 {
				n.service(balancer.Name("s"+strconv.Itoa(i)), "db"+strconv.Itoa(i), "10.96.0.10")
			}
			n.found("s0", true)
			synctest.Wait()
			if got, want := n.found("s1999", true), "192.0.2.1"; got != want {
				t.Errorf("last service: endpoints = %q, want %q", got, want)
			}
			n.in = balancer.Inputs{}
			n.found("s0", true)
			synctest.Wait()
			if got := n.in.Resolved.Len(); got != 0 {
				t.Errorf("after all names were removed: answers = %d, want 0", got)
			}
		}
	})
}

// TestOneOfManyChanges changes one of many services. The work must not grow with the number of
// services.
func TestOneOfManyChanges(t *testing.T) {
	allocations := func(services int) float64 {
		n := startNode(t, t.TempDir())
		defer n.end()
		n.answers("", time.Hour, "192.0.2.1")
		for i := range services {
			n.service(balancer.Name("s"+strconv.Itoa(i)), "db"+strconv.Itoa(i), "10.96.0.10")
		}
		for n.found("s0", true); n.Awaits(); n.found("s0", true) {
			time.Sleep(time.Millisecond)
		}
		changes := 0
		return testing.AllocsPerRun(50, func() {
			changes++
			n.service("s0", "new"+strconv.Itoa(changes), "10.96.0.10")
			n.in.Resolved = n.Resolved(&n.in, true)
			n.in.Resolved = n.Checked(&n.in)
		})
	}
	few, many := allocations(100), allocations(10_000)
	t.Logf("%.0f allocations with 100 services, %.0f with 10,000", few, many)
	if many > 3*few {
		t.Errorf("one change with 10,000 services: allocations = %.0f, want at most three times the %.0f with 100", many, few)
	}
}
