package dataplane

import "testing"

// TestNeedsAnd combines all pairs of Needs. The result must have each need that either of the two
// has, except Marked, which it must have only if both have it.
func TestNeedsAnd(t *testing.T) {
	var all []Needs
	for i := range 64 {
		all = append(all, Needs{Forward: i&1 != 0, Marked: i&2 != 0, LocalIn: i&4 != 0, Translates: i&8 != 0, Resets: i&16 != 0, TranslatesAll: i&32 != 0})
	}
	for _, a := range all {
		for _, b := range all {
			both := a.And(b)
			want := Needs{
				Forward: a.Forward || b.Forward, Marked: a.Marked && b.Marked, LocalIn: a.LocalIn || b.LocalIn, Translates: a.Translates || b.Translates,
				Resets: a.Resets || b.Resets, TranslatesAll: a.TranslatesAll && b.TranslatesAll,
			}
			if both != want || both != b.And(a) || both.And(a) != both {
				t.Errorf("%+v.And(%+v) = %+v, want %+v", a, b, both, want)
			}
		}
	}
}
