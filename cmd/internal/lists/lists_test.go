package lists

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
)

// TestMapped converts numbers to text. The result must contain each number's text, in order.
func TestMapped(t *testing.T) {
	if got, want := Mapped([]int{3, 1}, strconv.Itoa), []string{"3", "1"}; !slices.Equal(got, want) {
		t.Errorf("Mapped = %q, want %q", got, want)
	}
}

// TestNonNil passes a nil list and a list with an element. The nil list must become an empty list
// in JSON, and the list with an element must not change.
func TestNonNil(t *testing.T) {
	if text, err := json.Marshal(NonNil[int](nil)); err != nil || string(text) != "[]" {
		t.Errorf("JSON = %s, %v, want []", text, err)
	}
	if got := NonNil([]int{1}); len(got) != 1 {
		t.Errorf("NonNil = %v, want [1]", got)
	}
}
