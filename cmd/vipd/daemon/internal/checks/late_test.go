package checks

import (
	"strings"
	"testing"
	"time"

	"vipd/dataplane/probe"
)

// TestLateProblem reports late checks whose delay varies. The problem must name the delay and a
// sufficient interval. It must not change until the delay has doubled, and must disappear when no
// check is late.
func TestLateProblem(t *testing.T) {
	var l late
	by := func(d time.Duration) []probe.Late {
		return []probe.Late{{Programs: true, By: d, Interval: time.Second, Limit: 16}}
	}
	for _, c := range []struct {
		now     []probe.Late
		changes bool
		text    string
	}{
		{nil, false, ""},
		{by(2300 * time.Millisecond), true, "start 2.3s after they are due, because at most 16 run at once"},
		{by(4 * time.Second), false, "Set health.interval to 4s instead of 1s"},
		{by(4700 * time.Millisecond), true, "Set health.interval to 6s instead of 1s, or use faster programs"},
		{nil, true, ""},
	} {
		if got := l.update(c.now); got != c.changes {
			t.Errorf("update(%v) = %v, want %v", c.now, got, c.changes)
		}
		problems := l.problems()
		if (len(problems) == 0) != (c.text == "") || len(problems) > 0 && !strings.Contains(problems[0].Text, c.text) {
			t.Errorf("after update(%v): problems = %v, want %q", c.now, problems, c.text)
		}
	}
}
