package guard

import "testing"

// TestModesTogether holds And to what a switch needs: nothing is lost that either mode needs, and the guard looks for all
// connections unless both modes do.
func TestModesTogether(t *testing.T) {
	var all []Mode
	for i := range 16 {
		all = append(all, Mode{Forward: i&1 != 0, Marked: i&2 != 0, IPVS: i&4 != 0, Translates: i&8 != 0})
	}
	for _, a := range all {
		for _, b := range all {
			both := a.And(b)
			want := Mode{
				Forward: a.Forward || b.Forward, Marked: a.Marked && b.Marked, IPVS: a.IPVS || b.IPVS, Translates: a.Translates || b.Translates,
			}
			if both != want || both != b.And(a) || both.And(a) != both {
				t.Errorf("%+v and %+v: %+v", a, b, both)
			}
		}
	}
}
