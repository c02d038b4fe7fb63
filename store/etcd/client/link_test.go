package client

import (
	"testing"
	"time"
)

// TestPause computes the pauses of a thousand hosts that lose etcd simultaneously. Their retries
// must be spread over time. Hosts whose attempts fail repeatedly must retry less often.
func TestPause(t *testing.T) {
	const hosts, parts = 1000, 10
	timing := UsualTiming()
	for failures, most := range map[int]time.Duration{0: timing.Jitter, 1: time.Second, 3: 4 * time.Second, 4: timing.Slowest, 1000: timing.Slowest} {
		least := most / 2
		if failures == 0 {
			least = 0
		}
		var in [parts]int
		for range hosts {
			p := timing.pause(failures)
			if p < least || p > most {
				t.Fatalf("pause after %d failures = %s; want %s to %s", failures, p, least, most)
			}
			in[min(parts-1, (p-least)*parts/(most-least))]++
		}
		for i, n := range in {
			if n < hosts/parts/2 || n > hosts/parts*2 {
				t.Errorf("after %d failures, %d of %d hosts retry in part %d of %d of the time, want an even distribution", failures, n, hosts, i, parts)
			}
		}
	}
}
