package failover

import (
	"net/netip"
	"time"
)

// Action is something that is to be done. Actions are carried out in order.
type Action interface{ action() }

// Send sends a message to a peer: from each of this node's addresses, or from the one that On names.
type Send struct {
	To      string
	On      int // an index of Member.At; -1 means all
	Message Message
}

// Write is a transaction in etcd. Its outcome is told to Node.Wrote.
type Write struct {
	ID     int
	If     []Condition
	Put    []Put
	Delete []Key
}

// Condition holds if the record was last changed at the revision; 0 means that there must be none.
type Condition struct {
	Key
	Revision int64
}

// Put writes a record.
type Put struct {
	Key
	Text []byte
}

// CloseGate closes the gate, so that refreshes of the session before open it no more, and then takes all addresses of VIPs
// away. Node.Closed is told when both are done; until then it is to be tried again.
type CloseGate struct{}

// OpenGate opens the gate; Node.Opened is told.
type OpenGate struct{}

// Bind adds addresses to their devices and announces them.
type Bind struct{ Addrs []netip.Addr }

// Unbind takes addresses away. With an ID, Node.Unbound is told when they are.
type Unbind struct {
	ID    int
	Addrs []netip.Addr
}

// Probe asks whether hosts outside of the fleet have addresses that no node of the fleet has; the answer goes to Node.Probed.
type Probe struct{ Addrs []netip.Addr }

// Register has this node registered as another run (Member.Boot): what the run before has voted counts no more.
type Register struct{ Boot ID }

// Note is an event for people.
type Note struct {
	Kind Noted
	Text string
	// VIPs is how many addresses it is about, and Why a word for metrics.
	VIPs int
	Why  string
	// After is for how long VIPs that this node took had had no owner: since its last sign; 0 means they never had one.
	After time.Duration
}

// Noted is what a Note is about.
type Noted string

// What notes are about.
const (
	NoteTook    Noted = "took"
	NoteGave    Noted = "gave"
	NoteLost    Noted = "lost"
	NoteBack    Noted = "back"
	NoteSession Noted = "session"
	NoteGate    Noted = "gate"
	NoteRefused Noted = "refused"
	NoteRival   Noted = "rival"
	// NoteFlapping is about a VIP that has moved so often that it stays for a while.
	NoteFlapping Noted = "flapping"
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

// Outcome is what became of a Write.
type Outcome int

// The outcomes.
const (
	// Unknown: it may have been carried out, or may still be.
	Unknown Outcome = iota
	// Refused: a condition did not hold.
	Refused
	// Unsent: it was not carried out and never will be, because etcd is away, full, or does not let this node write.
	Unsent
	// Done: it is carried out.
	Done
)

// Change is a record of etcd that was read, written or removed.
type Change struct {
	Key
	Revision int64
	Text     []byte // nil means removed
}
