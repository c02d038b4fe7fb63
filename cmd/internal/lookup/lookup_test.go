package lookup

import "testing"

// TestOther looks up misspelled names. The message must have the nearest name, or the known names
// if none is near.
func TestOther(t *testing.T) {
	for _, test := range []struct {
		name  string
		known []string
		want  string
	}{
		{"wbe", []string{"dns", "web"}, "; did you mean web?"},
		{"nope", []string{"dns", "web"}, "; there are dns, web"},
		{"nope", []string{"web"}, "; there is web"},
		{"nope", nil, "; there are none"},
	} {
		if got := Other(test.name, test.known); got != test.want {
			t.Errorf("Other(%q, %q) = %q, want %q", test.name, test.known, got, test.want)
		}
	}
}
