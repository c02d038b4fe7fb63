package userspace

import (
	"testing"
	"time"
)

// TestBackendRest records a failure of a backend. The backend must rest, which means that it gets
// no connections for a second, and then only one caller may try it. A successful attempt must end
// the rest.
func TestBackendRest(t *testing.T) {
	b := &backend{}
	const start = int64(time.Hour)
	patience := 3 * time.Second
	if b.inBackoff(start) || !b.mayTry(start, patience) {
		t.Error("backend without a failure: inBackoff = true or mayTry = false, want false and true")
	}
	if !b.failed(start) || b.failed(start) {
		t.Error("failed must return true for the first failure only")
	}
	if !b.inBackoff(start+1) || b.mayTry(start+1, patience) {
		t.Error("backend that has just failed: inBackoff = false or mayTry = true, want true and false")
	}
	after := start + int64(Rest)
	if b.inBackoff(after) || !b.mayTry(after, patience) {
		t.Error("after the rest: inBackoff = true or mayTry = false, want false and true")
	}
	if !b.inBackoff(after+int64(patience)) || b.mayTry(after+int64(patience), patience) {
		t.Error("second caller after the rest: inBackoff = true or mayTry = true, want false")
	}
	if !b.answered() || b.answered() || b.inBackoff(after) {
		t.Error("answered must end the rest, and return true only once")
	}
}
