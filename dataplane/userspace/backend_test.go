package userspace

import (
	"testing"
	"time"
)

// TestBackendRest makes a backend fail. It rests, then one client tries it, and an answer ends
// the rest.
func TestBackendRest(t *testing.T) {
	b := &backend{}
	const start = int64(time.Hour)
	patience := 3 * time.Second
	if b.resting(start) || !b.awake(start, patience) {
		t.Error("a backend that never failed rests")
	}
	if !b.failed(start) || b.failed(start) {
		t.Error("only the first failure is news")
	}
	if !b.resting(start+1) || b.awake(start+1, patience) {
		t.Error("a backend that has just failed does not rest")
	}
	after := start + int64(Rest)
	if b.resting(after) || !b.awake(after, patience) {
		t.Error("after the rest nobody may try it")
	}
	if !b.resting(after+int64(patience)) || b.awake(after+int64(patience), patience) {
		t.Error("while one tries it, others may")
	}
	if !b.answered() || b.answered() || b.resting(after) {
		t.Error("an answer does not end the rest, or is news twice")
	}
}
