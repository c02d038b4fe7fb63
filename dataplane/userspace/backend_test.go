package userspace

import (
	"testing"
	"time"
)

// TestBackendRest makes a backend fail. The backend must rest, which means that it gets no
// connections for some time. Then only one caller may try it. If this attempt succeeds, the rest
// must end.
func TestBackendRest(t *testing.T) {
	b := &backend{}
	const start = int64(time.Hour)
	patience := 3 * time.Second
	if b.inBackoff(start) || !b.mayTry(start, patience) {
		t.Error("resting() of a backend without a failure = true, want false")
	}
	if !b.failed(start) || b.failed(start) {
		t.Error("failed() = true, true; want only the first")
	}
	if !b.inBackoff(start+1) || b.mayTry(start+1, patience) {
		t.Error("resting() of a backend that has just failed = false, want true")
	}
	after := start + int64(Rest)
	if b.inBackoff(after) || !b.mayTry(after, patience) {
		t.Error("awake() after the rest = false, want true")
	}
	if !b.inBackoff(after+int64(patience)) || b.mayTry(after+int64(patience), patience) {
		t.Error("awake() = true for a second caller, want false")
	}
	if !b.answered() || b.answered() || b.inBackoff(after) {
		t.Error("answered() did not end the rest, or returned true twice")
	}
}
