package xtables

import (
	"testing"
	"testing/synctest"
	"time"
)

// changing is a table that others change.
type changing struct {
	stamp   Stamp
	commits uint32
}

func (c *changing) Stamp(string) (Stamp, error) { return c.stamp, nil }
func (c *changing) Commits() uint32             { return c.commits }

// write has us change the table.
func (c *changing) write() {
	c.stamp.Generation++
	c.commits++
}

// TestLookKnowsItsOwn goes through what happens to a table between probes, and whether the next one compares it.
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
		afterward bool // once more after a probe in which it was in order
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
			time.Sleep(longestPause)
		}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, l := &changing{stamp: c.stamp}, &Look{Wary: c.wary}
				c.happens(l, table)
				for _, want := range []bool{c.compared, c.afterward} {
					compared := false
					_, err := l.Probe(table, "nat", func() int { return 50 }, func() (string, error) { compared = true; return "", nil })
					if err != nil || compared != want {
						t.Errorf("compared: %t, %v; want %t", compared, err, want)
					}
				}
			})
		})
	}
}

// TestLookPaces lets others change a table ten times a second, which takes long to compare.
func TestLookPaces(t *testing.T) {
	for _, takes := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond, 25 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			table, l := &changing{stamp: Stamp{Generation: 1}}, &Look{}
			var spent, last, longest time.Duration
			began := time.Now()
			for since := time.Duration(0); since < 10*time.Minute; since = time.Since(began) {
				table.stamp.Generation++
				_, err := l.Probe(table, "nat", func() int { return 0 }, func() (string, error) {
					longest, last = max(longest, since-last), since
					spent += takes
					time.Sleep(takes)
					return "", nil
				})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if most := time.Since(began)/share + 2*credit; spent > most && longest < longestPause {
				t.Errorf("comparing for %s each took %s, want at most %s", takes, spent, most)
			}
			if longest > longestPause+takes+200*time.Millisecond {
				t.Errorf("comparing for %s each, there were %s between two", takes, longest)
			}
			if takes*10 < time.Second/share && longest > 100*time.Millisecond+takes {
				t.Errorf("comparing for %s each, which is cheap, there were %s between two", takes, longest)
			}
		})
	}
}
