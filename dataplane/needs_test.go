package dataplane

import "testing"

// TestModesTogether holds And to what a switch needs: nothing is lost that either mode needs, and the guard looks for all
// connections unless both modes do.
func TestModesTogether(t *testing.T) {
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
				t.Errorf("%+v and %+v: %+v", a, b, both)
			}
		}
	}
}
