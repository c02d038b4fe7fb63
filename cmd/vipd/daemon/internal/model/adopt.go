package model

import (
	"vipd/dataplane"
)

// adoption is a dataplane that is to take over.
type adoption struct {
	dataplane dataplane.Dataplane
	moved     chan struct{} // closed when it has
}

// Adopt compiles for another dataplane from now on, and has it take over. The channel is closed when all traffic has
// moved; it never is when another one is adopted before that.
func (m *Model) Adopt(dp dataplane.Dataplane) <-chan struct{} {
	a := &adoption{dataplane: dp, moved: make(chan struct{})}
	m.mu.Lock()
	m.next = a
	m.mu.Unlock()
	m.Kick()
	return a.moved
}

// adopted returns the dataplane that is to take over with the state that is compiled now; nil means none is.
func (m *Model) adopted() *adoption {
	m.mu.Lock()
	next := m.next
	m.next = nil
	m.mu.Unlock()
	if next != nil {
		m.carrier = next.dataplane
	}
	return next
}
