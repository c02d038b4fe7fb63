package failover

// Send sends a message to a peer from one of this node's addresses, or from each of them.
type Send struct {
	To      string
	On      int // index of Member.At; -1 means all
	Message Message
}

// Write is a transaction in etcd. [Node.Wrote] receives its outcome.
type Write struct {
	ID     int
	If     []Condition
	Put    []Put
	Delete []Key
}

// Condition is met if the record was last changed at the revision. Revision 0 means that the record
// must not exist.
type Condition struct {
	Key
	Revision int64
}

// Put writes a record.
type Put struct {
	Key
	Text []byte
}

// Register registers this node as a new run (Member.Boot), so votes of the earlier run no longer
// count.
type Register struct{ Boot ID }

// Action marks Send as an action.
func (Send) Action() {}

// Action marks Write as an action.
func (Write) Action() {}

// Action marks Register as an action.
func (Register) Action() {}

// Outcome is the result of a Write.
type Outcome int

// The outcomes.
const (
	// Unknown means that etcd may have made the write, or may still make it.
	Unknown Outcome = iota
	// Refused means that a condition of the write did not hold.
	Refused
	// Unsent means that the write was not made and never will be, because etcd is unreachable or
	// full, or denies this node the write.
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
