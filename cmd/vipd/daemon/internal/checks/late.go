package checks

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/dataplane/probe"
)

// late records which checks are reported as late.
type late struct {
	reported atomic.Pointer[[]probe.Late]
}

// update stores the checks that are currently late, and reports whether the problem has changed. A
// longer delay changes the problem only after it has doubled, because each new text causes an
// event.
func (l *late) update(now []probe.Late) bool {
	var before []probe.Late
	if p := l.reported.Load(); p != nil {
		before = *p
	}
	if slices.EqualFunc(before, now, func(b, n probe.Late) bool { return b.Programs == n.Programs && n.By < 2*b.By }) {
		return false
	}
	l.reported.Store(&now)
	return true
}

// problems returns a problem for the late checks, with the reason and the remedy.
func (l *late) problems() (all []balancer.Problem) {
	p := l.reported.Load()
	if p == nil {
		return nil
	}
	for _, x := range *p {
		what, remedy := "checks over the network", "a shorter health.timeout"
		if x.Programs {
			what, remedy = "checks that run programs", "faster programs"
		}
		enough := (x.By + x.Interval + time.Second - 1).Truncate(time.Second)
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityWarning, Field: "health.interval",
			Text: fmt.Sprintf("checks are late: %s start %s after they are due, because at most %d run at once, so failed endpoints are noticed later. Set health.interval to %s instead of %s, or use %s",
				what, decode.FormatDuration(x.By.Round(100*time.Millisecond)), x.Limit, decode.FormatDuration(enough), decode.FormatDuration(x.Interval), remedy),
		})
	}
	return all
}
