package fleetchecks

import (
	"fmt"
	"math"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/wait"
)

// TestFleetSharesChecks shares the checks of some targets between 5, 10 and 20 hosts (50 in make
// soak). For any number of hosts, each target must be probed three times in each interval. While no
// verdict changes, nothing may be written. Three small writes must be sufficient to inform all
// hosts about a failing target. When a host leaves, only its targets may be reassigned.
func TestFleetSharesChecks(t *testing.T) {
	const targets = 150
	w := newWorld(t, targets, quick())
	w.unhurried() // many hosts on one machine need more time
	for _, n := range []int{5, 10, wait.Soak(20, 50)} {
		for len(w.hosts) < n {
			w.join(fmt.Sprintf("host%d", len(w.hosts)+1))
		}
		began := time.Now()
		w.waitUntilStable(w.hosts, balancer.HealthUp)
		settled := time.Since(began)
		rate := 0.0
		wait.For(t, time.Minute, "an end of writes, and three probes of each target per interval", func() bool { // votes may still move between hosts
			before := w.revision()
			began = time.Now()
			w.probes.Store(0)
			time.Sleep(4 * w.health.Interval) // the measured interval
			rate = float64(w.probes.Load()) / targets / (float64(time.Since(began)) / float64(w.health.Interval))
			// Intervals are randomly shortened by up to a tenth. On a busy machine they are much
			// longer, and later intervals compensate for this.
			t.Logf("%d hosts: %.2f probes of each target per interval, want 3", n, rate)
			return w.revision() == before && rate > 0 && rate < 3.7
		})
		mean, most := float64(3*targets)/float64(n), 0
		for _, h := range w.hosts {
			most = max(most, h.checking())
		}
		if bound := mean + 5*math.Sqrt(mean); float64(most) > bound {
			t.Errorf("%d hosts: targets of one host = %d with a mean of %.0f, want at most %.0f", n, most, mean, bound)
		}
		t.Logf("%d hosts: settled after %s, %.2f probes of each target an interval, fair share %.1f targets a host, at most %d", n, settled, rate, mean, most)
	}
	w.flips(t)
	w.removeHost(t)
}

// flips makes a target fail, and checks that each checker writes only once.
func (w *world) flips(t *testing.T) {
	t.Helper()
	before := w.revision()
	began := time.Now()
	w.turn(true, w.targets[0])
	wait.For(t, 30*time.Second, "all hosts to hear that a target is down", func() bool {
		for _, h := range w.hosts {
			if h.verdict(w.targets[0]) != balancer.HealthDown {
				return false
			}
		}
		return true
	})
	heard := time.Since(began)
	time.Sleep(2 * w.health.Interval) // wait for unexpected writes
	writes := w.revision() - before
	if writes < 2 || writes > 3 {
		t.Errorf("writes for a failing target = %d, want one from each checker", writes)
	}
	size := 0
	standing, _ := w.hosts[0].checks.Standing(w.targets[0])
	for n := range standing.Votes {
		answer, err := w.client.Get(t.Context(), fmt.Sprintf("/vipd/health/%s/web/%s", n, w.targets[0].Address()))
		if err != nil || len(answer.Kvs) != 1 {
			t.Fatal(n, answer, err)
		}
		size = max(size, len(answer.Kvs[0].Key)+len(answer.Kvs[0].Value))
	}
	t.Logf("a target goes down: all %d hosts know after %s, %d writes of %d bytes at most, key and value", len(w.hosts), heard, writes, size)
	w.turn(false, w.targets[0])
	w.waitUntilStable(w.hosts, balancer.HealthUp)
}

// removeHost removes a host. Only its targets may be reassigned, and no host may use the verdict
// "down" or "unknown" in the process.
func (w *world) removeHost(t *testing.T) {
	t.Helper()
	last := w.hosts[len(w.hosts)-1]
	rest := w.hosts[:len(w.hosts)-1]
	had, before := last.checking(), map[*simulated]int{}
	for _, h := range rest {
		before[h] = h.checking()
		h.ever(balancer.HealthDown)
	}
	revision := w.revision()
	last.stop()
	w.waitUntilStable(rest, balancer.HealthUp)
	moved := 0
	for _, h := range rest {
		if h.checking() < before[h] {
			t.Errorf("targets that %s lost when another host left = %d, want 0", h.name, before[h]-h.checking())
		}
		moved += h.checking() - before[h]
		if h.ever(balancer.HealthDown) {
			t.Errorf("%s used the verdict \"down\" when a host left, want \"up\"", h.name)
		}
	}
	if moved != had {
		t.Errorf("when a host left: targets reassigned = %d, want %d, the targets of the host that left", moved, had)
	}
	t.Logf("one of %d hosts leaves: %d of %d targets move (3/n are %.1f), in %d writes", len(rest)+1, moved, len(w.targets), 3*float64(len(w.targets))/float64(len(rest)+1), w.revision()-revision)
}
