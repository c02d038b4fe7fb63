package userspace

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestDescriptorShortageIsReported makes clients wait for descriptors. This is reported while they
// wait, and for a minute afterwards.
func TestDescriptorShortageIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{limit: 10}
		says := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := b.lacks(); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("lacks() = %q, want %q", got, want)
			}
		}
		b.take(9)
		says("")
		go b.wait(nil, t.Context().Done())
		time.Sleep(2 * shortagePeriod)
		says("(there are 10, two a connection)")
		b.give(9)
		time.Sleep(shortagePeriod - time.Second)
		says("new clients wait")
		time.Sleep(time.Second)
		says("")
	})
}
