package guard

import (
	"context"
	"testing"
	"time"

	"vipd/dataplane/internal/xtables"
)

// slowTable is a table that takes time to compare, and in which things happen.
type slowTable struct {
	Tool
	stamp    xtables.Stamp
	takes    time.Duration
	broken   bool
	compared int
}

func (s *slowTable) Stamp(string) (xtables.Stamp, error) { return s.stamp, nil }

func (s *slowTable) Commits() uint32 { return 0 }

func (s *slowTable) Prints(context.Context, string, string, []string) (map[string]xtables.Print, error) {
	s.compared++
	time.Sleep(s.takes)
	if s.broken {
		return nil, nil
	}
	return map[string]xtables.Print{"VIPD-A": {Rules: 20}, "VIPD-B": {Rules: 10}}, nil
}

// TestWatchPace looks at a big table twice a second while the mode changes it twice a second: it is compared each time where
// that is quick, else once a second. Damage is noticed with the next comparison, and at once when the table has become
// smaller than what is ours.
func TestWatchPace(t *testing.T) {
	want := map[string]int{"VIPD-A": 20, "VIPD-B": 10}
	for _, c := range []struct {
		takes  time.Duration
		atMost int
	}{{time.Millisecond, 121}, {20 * time.Millisecond, 62}, {140 * time.Millisecond, 62}} {
		inBubble(t, c.takes.String(), func(t *testing.T) {
			table, w := &slowTable{takes: c.takes}, newWatch()
			if err := w.wrote(t.Context(), table, "nat", want, nil); err != nil {
				t.Fatal(err)
			}
			table.compared = 0
			look := func() string {
				t.Helper()
				reason, err := w.look(t.Context(), table, "nat")
				if err != nil {
					t.Fatal(err)
				}
				return reason
			}
			table.stamp = xtables.Stamp{Generation: 1, Entries: 1000}
			for range 120 {
				table.stamp.Entries++
				if reason := look(); reason != "" {
					t.Fatal(reason)
				}
				time.Sleep(500 * time.Millisecond)
			}
			if table.compared > c.atMost {
				t.Errorf("%d comparisons in a minute, want at most %d", table.compared, c.atMost)
			}
			const longestRest = time.Second
			before := table.compared
			table.stamp.Entries++
			time.Sleep(longestRest)
			if look(); table.compared != before+1 {
				t.Error("after a rest it was not compared")
			}
			time.Sleep(longestRest)
			before = table.compared
			if look(); table.compared > before {
				t.Error("it was compared though nobody has changed it")
			}
			table.stamp.Entries, table.broken = table.stamp.Entries-1, true
			if look() == "" {
				t.Error("damage was not noticed when nothing else was going on")
			}
			table.stamp.Entries = 30 - 1
			if look() == "" {
				t.Error("that nearly all is gone was not noticed at once")
			}
		})
	}
}

// TestJumpsAreProved: chains that were written are not there for packets without the jumps to them.
func TestJumpsAreProved(t *testing.T) {
	want := map[string]int{"VIPD-A": 20, "VIPD-B": 10}
	for base, jumps := range map[string]int{"VIPD-B": 10, "FORWARD": 1} { // of the former there are 10 rules, of the latter none
		err := newWatch().wrote(t.Context(), &slowTable{}, "filter", want, map[string]int{base: jumps})
		if lost := base == "FORWARD"; (err != nil) != lost {
			t.Errorf("%d jumps from %s: %v", jumps, base, err)
		}
	}
}
