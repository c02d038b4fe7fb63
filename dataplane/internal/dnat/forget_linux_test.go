package dnat

import (
	"testing"
	"testing/synctest"
	"time"

	"vipd/dataplane/counters"
)

// TestBytesOfWhatIsGoneAreForgotten ends flows to several ports. A port's byte counts must stay
// while they are requested, and for counters.Retention after the last request.
func TestBytesOfWhatIsGoneAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := &traffic{ended: map[counters.Port]volume{}, shown: map[counters.Port]volume{}, asked: map[counters.Port]time.Time{}}
		stays, goes, never := counters.Port{Service: "stays"}, counters.Port{Service: "goes"}, counters.Port{Service: "never"}
		for _, k := range []counters.Port{stays, goes, never} { // the test never requests the bytes of the port "never"
			counts.ended[k] = volume{1, 2}
		}
		counts.before = counts.ended
		counts.bytes(goes)
		for began := time.Now(); time.Since(began) <= counters.Retention; time.Sleep(counters.Retention / 4) {
			if got, _ := counts.bytes(stays); got != (volume{1, 2}) {
				t.Errorf("bytes = %v, want the counts of the ended flow", got)
			}
			counts.prune(time.Now())
			if len(counts.ended) != 3 {
				t.Errorf("after %v: ports with counts = %d, want 3", time.Since(began), len(counts.ended))
			}
		}
		counts.prune(time.Now())
		if len(counts.ended) != 1 || len(counts.shown) != 1 || len(counts.asked) != 1 || counts.ended[stays] != (volume{1, 2}) {
			t.Errorf("after counters.Retention: ended = %v, shown = %v, asked = %v; want only %s", counts.ended, counts.shown, counts.asked, stays.Service)
		}
	})
}
