package xtables

import (
	"testing"
	"testing/synctest"
	"time"
)

// changing simulates a table that vipd and other programs change.
type changing struct {
	stamp   Stamp
	commits uint32
}

func (c *changing) Stamp(string) (Stamp, error) { return c.stamp, nil }
func (c *changing) Commits() uint32             { return c.commits }

// write changes the table as if vipd had written it.
func (c *changing) write() {
	c.stamp.Generation++
	c.commits++
}

// TestLookKnowsItsOwn changes a table between two probes in several ways. The second probe must
// compare the table only if another program may have changed it.
func TestLookKnowsItsOwn(t *testing.T) {
	nft, legacy := Stamp{Generation: 7}, Stamp{Entries: 100}
	change := func(c *changing) {
		if c.stamp.Generation > 0 {
			c.stamp.Generation++
		} else {
			c.stamp.Bytes++
		}
	}
	for _, c := range []struct {
		name      string
		stamp     Stamp
		wary      bool
		happens   func(*Look, *changing)
		compared  bool
		afterward bool // whether the change follows a probe that found no damage
	}{
		{"nothing is known", nft, false, func(*Look, *changing) {}, true, false},
		{"it was read", nft, false, func(l *Look, c *changing) { l.Found(c.stamp) }, false, false},
		{"it was read without a stamp", nft, false, func(l *Look, _ *changing) { l.Found(Stamp{}) }, true, false},
		{"others change it", nft, false, func(l *Look, c *changing) { l.Found(c.stamp); change(c) }, true, false},
		{"others change it, in legacy", legacy, false, func(l *Look, c *changing) { l.Found(c.stamp); change(c) }, true, false},
		{"legacy may hide a change", legacy, true, func(l *Look, c *changing) { l.Found(c.stamp) }, true, true},
		{"nft hides none", nft, true, func(l *Look, c *changing) { l.Found(c.stamp) }, false, false},
		{"we change it", nft, false, func(l *Look, c *changing) {
			l.Found(c.stamp)
			defer l.Writing(c, "nat")()
			c.write()
		}, false, false},
		{"others change it, and then we", nft, false, func(l *Look, c *changing) {
			l.Found(c.stamp)
			change(c)
			defer l.Writing(c, "nat")()
			c.write()
		}, true, false},
		{"others change it while we do", nft, false, func(l *Look, c *changing) {
			l.Found(c.stamp)
			defer l.Writing(c, "nat")()
			change(c)
			c.write()
		}, true, false},
		{"we change legacy's", legacy, false, func(l *Look, c *changing) {
			l.Found(c.stamp)
			defer l.Writing(c, "nat")()
			change(c)
		}, false, false},
		{"we changed legacy's long ago, and others may have at the same time", legacy, false, func(l *Look, c *changing) {
			l.Found(c.stamp)
			l.Writing(c, "nat")()
			time.Sleep(maxSeenPause)
		}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, l := &changing{stamp: c.stamp}, &Look{always: c.wary}
				c.happens(l, table)
				for _, want := range []bool{c.compared, c.afterward} {
					compared := false
					_, err := l.Probe(table, "nat", func() int { return 50 }, func() (string, error) { compared = true; return "", nil })
					if err != nil || compared != want {
						t.Errorf("compared = %t, error = %v; want %t", compared, err, want)
					}
				}
			})
		})
	}
}

// TestLookPaces changes a table ten times a second, and probes it as often. A change must cause a
// comparison within maxSeenPause, and immediately if comparisons are cheap. In the legacy variant,
// the stamp may hide a change. Comparisons without a visible change must stay within their share of
// the time.
func TestLookPaces(t *testing.T) {
	for _, takes := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond, 25 * time.Millisecond, time.Second} {
		for _, seen := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				table, l := &changing{stamp: Stamp{Entries: 1}}, &Look{always: true}
				var spent, last, longest time.Duration
				began := time.Now()
				for since := time.Duration(0); since < 10*time.Minute; since = time.Since(began) {
					if seen {
						table.stamp.Bytes++
					}
					_, err := l.Probe(table, "nat", func() int { return 0 }, func() (string, error) {
						longest, last = max(longest, time.Since(began)-last), time.Since(began)+takes
						spent += takes
						time.Sleep(takes)
						return "", nil
					})
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				pause := map[bool]time.Duration{true: maxSeenPause, false: maxSizesPause}[seen]
				if most := time.Since(began)/share + 2*credit; spent > most && longest < pause {
					t.Errorf("comparisons of %s each (damage seen = %t) took %s, want at most %s", takes, seen, spent, most)
				}
				if longest > pause+100*time.Millisecond {
					t.Errorf("comparisons of %s each (damage seen = %t): longest pause = %s, want at most %s", takes, seen, longest, pause)
				}
				if takes*10 < time.Second/share && longest > 100*time.Millisecond+takes {
					t.Errorf("comparisons of only %s each: longest pause = %s, want a comparison at each probe", takes, longest)
				}
			})
		}
	}
}

// TestLookFindsChangesInTime probes a table every second. Each comparison takes 150 ms, as on a
// busy machine. If the table is damaged just after a comparison, a probe must find the damage
// within two seconds.
func TestLookFindsChangesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, w := &changing{stamp: Stamp{Generation: 1}}, &Watch{}
		found, broken := "", ""
		probe := func() {
			compared := func(reason string) func() (string, error) {
				return func() (string, error) { time.Sleep(150 * time.Millisecond); return reason, nil }
			}
			reason, err := w.Probe(table, "nat", nil, compared(""), compared(broken))
			if err != nil {
				t.Fatal(err)
			}
			found = reason
		}
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for range 21 { // other programs keep changing rules, and the last of these probes compares the table
			table.stamp.Generation++
			probe()
			<-tick.C
		}
		table.stamp.Generation++
		began := time.Now()
		for broken = "a rule is gone"; found == "" && time.Since(began) < time.Minute; probe() {
			<-tick.C
		}
		if took := time.Since(began); found != broken || took > 2*time.Second+300*time.Millisecond { // the limit includes the comparisons
			t.Errorf("damage found after %s = %q, want %q within 2 s", took, found, broken)
		}
	})
}
