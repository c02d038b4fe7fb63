package userspace

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestDescriptorShortageIsReported makes clients wait because no descriptors are free. lacks must
// report this while the clients wait, and for a minute afterwards.
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
		b.claim(nil)
		says("(10, two per connection)")
		time.Sleep(shortagePeriod - time.Second)
		says("new clients wait")
		time.Sleep(time.Second + 1)
		says("")
	})
}
