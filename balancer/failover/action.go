package failover

import (
	"net/netip"
	"time"
)

// Action is a step for the process to carry out. Actions are carried out in order.
type Action interface{ action() }

// Send sends a message to a peer, from each of this node's addresses or from one.
type Send struct {
	To      string
	On      int // an index of Member.At; -1 means all
	Message Message
}

// Write is a transaction in etcd. [Node.Wrote] receives its outcome.
type Write struct {
	ID     int
	If     []Condition
	Put    []Put
	Delete []Key
}

// Condition holds if the record was last changed at the revision; 0 means it must not exist.
type Condition struct {
	Key
	Revision int64
}

// Put writes a record.
type Put struct {
	Key
	Text []byte
}

// CloseGate closes the gate, so earlier refreshes no longer open it, and then removes all addresses of VIPs. [Node.Closed] is called when
// both are done; until then the process tries again.
type CloseGate struct{}

// OpenGate opens the gate. [Node.Opened] receives the result.
type OpenGate struct{}

// Bind adds addresses to their devices and announces them.
type Bind struct{ Addrs []netip.Addr }

// Unbind removes addresses. If it has an ID, [Node.Unbound] is called when they are removed.
type Unbind struct {
	ID    int
	Addrs []netip.Addr
}

// Probe asks whether hosts outside the fleet have addresses that no node of the fleet has. [Node.Probed] receives the answers.
type Probe struct{ Addrs []netip.Addr }

// Register registers this node as another run (Member.Boot): votes of the run before no longer count.
type Register struct{ Boot ID }

// Note is an event for people.
type Note struct {
	Kind NoteKind
	Text string
	// VIPs is the number of addresses concerned, and Why a word for metrics.
	VIPs int
	Why  string
	// After is how long the VIPs that this node took had no owner, since their last owner's last sign; 0 means they never had one.
	After time.Duration
}

// NoteKind is the subject of a Note.
type NoteKind string

// The subjects of notes.
const (
	NoteTook    NoteKind = "took"
	NoteGave    NoteKind = "gave"
	NoteLost    NoteKind = "lost"
	NoteBack    NoteKind = "back"
	NoteSession NoteKind = "session"
	NoteGate    NoteKind = "gate"
	NoteRefused NoteKind = "refused"
	NoteRival   NoteKind = "rival"
	// NoteFlapping is a VIP that has moved so often that it stays for a while.
	NoteFlapping NoteKind = "flapping"
)

func (Send) action()      {}
func (Write) action()     {}
func (CloseGate) action() {}
func (OpenGate) action()  {}
func (Bind) action()      {}
func (Unbind) action()    {}
func (Probe) action()     {}
func (Register) action()  {}
func (Note) action()      {}

// Outcome is the result of a Write.
type Outcome int

// The outcomes.
const (
	// Unknown means that etcd has made the write, or may still make it.
	Unknown Outcome = iota
	// Refused means that a condition of the write did not hold.
	Refused
	// Unsent means that the write was not made and never will be, because etcd is unreachable, full, or denies it to this node.
	Unsent
	// Done means that etcd has made the write.
	Done
)

// RecordChange is a record of etcd that was read, written or removed.
type RecordChange struct {
	Key
	Revision int64
	Text     []byte // nil means removed
}
