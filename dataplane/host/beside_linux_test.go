package host

import (
	"context"
	"fmt"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// TestManyVIPsInTheBackground adds and removes many VIPs while the mode writes its rules. Finish,
// or the next Prepare, must wait until all VIPs are added or removed.
func TestManyVIPsInTheBackground(t *testing.T) {
	lab.Require(t)
	lab.New(t)
	o := DefaultOptions()
	o.Interface, o.Mode.Forward = "lo", true
	h := newHost(t, o)
	var frontends []*balancer.Frontend
	for i := range 2 * backgroundThreshold {
		vip := fmt.Sprintf("10.96.%d.%d", i/100, i%100)
		frontends = append(frontends, frontend(vip+":80"))
	}
	own := len(onDevice(t, "lo"))
	holds := func(n int) {
		t.Helper()
		if got := len(onDevice(t, "lo")) - own; got != n {
			t.Errorf("held VIPs = %d, want %d", got, n)
		}
	}
	must(t, h.Prepare(context.Background(), desired(frontends...)))
	if h.busy == nil {
		t.Error("Prepare waited until all VIPs were added, want no wait")
	}
	must(t, h.Finish(context.Background(), desired(frontends...).Frontends))
	holds(2 * backgroundThreshold)
	must(t, h.Release(context.Background()))
	holds(0)
	must(t, h.Prepare(context.Background(), desired(frontends...)))
	must(t, h.Prepare(context.Background(), desired(frontends[:1]...)))
	must(t, h.Finish(context.Background(), desired(frontends[:1]...).Frontends))
	holds(1)
	must(t, h.Release(context.Background()))
}
