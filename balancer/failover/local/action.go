package local

import (
	"net/netip"
	"time"
)

// Action is a step for the process to carry out. Actions are carried out in order. A protocol adds
// actions for its own messages.
type Action interface{ Action() }

// CloseGate closes the gate, so earlier refreshes no longer open it, and then removes all addresses
// of VIPs. The protocol's Closed is called when both are complete; until then the process retries.
type CloseGate struct{}

// OpenGate opens the gate. The protocol's Opened receives the result.
type OpenGate struct{}

// Bind adds addresses to their devices and announces them.
type Bind struct{ Addrs []netip.Addr }

// Unbind removes addresses from their devices. If it has an ID, the protocol's Unbound is called
// when they are removed.
type Unbind struct {
	ID    int
	Addrs []netip.Addr
}

// Probe asks whether other hosts have the addresses. The protocol's Probed receives the answers.
type Probe struct {
	Addrs []netip.Addr
	// Within is how long to wait for answers. Zero means the default.
	Within time.Duration
}

// Note is an event for operators.
type Note struct {
	Kind NoteKind
	Text string
	// VIPs is the number of affected addresses, and Why is a label value for metrics.
	VIPs int
	Why  string
	// After is the time from the previous owner's last sign of life to this host's takeover. It is
	// 0 if the VIPs never had an owner.
	After time.Duration
}

// NoteKind is the subject of a Note.
type NoteKind string

// These are the subjects of notes.
const (
	NoteTook    NoteKind = "took"
	NoteGave    NoteKind = "gave"
	NoteLost    NoteKind = "lost"
	NoteBack    NoteKind = "back"
	NoteSession NoteKind = "session"
	NoteGate    NoteKind = "gate"
	NoteRefused NoteKind = "refused"
	NoteRival   NoteKind = "rival"
	// NoteFlapping reports a VIP that has moved so often that it must temporarily stay where it is.
	NoteFlapping NoteKind = "flapping"
)

// Action marks CloseGate as an action.
func (CloseGate) Action() {}

// Action marks OpenGate as an action.
func (OpenGate) Action() {}

// Action marks Bind as an action.
func (Bind) Action() {}

// Action marks Unbind as an action.
func (Unbind) Action() {}

// Action marks Probe as an action.
func (Probe) Action() {}

// Action marks Note as an action.
func (Note) Action() {}
