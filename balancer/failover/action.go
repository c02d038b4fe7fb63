package failover

// Send sends a message to a peer from one or each of this node's addresses.
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

// Condition holds if Revision is the record's revision. Revision 0 means that the record must not
// exist.
type Condition struct {
	Key
	Revision int64
}

// Put writes a record.
type Put struct {
	Key
	Text []byte
}

// Register registers a new run (Member.Boot) of this node, so the earlier run's votes no longer
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

// These are the outcomes.
const (
	// Unknown means that etcd may have executed the write, or may still do so.
	Unknown Outcome = iota
	// Refused means that a condition of the write did not hold.
	Refused
	// Unsent means that etcd has not executed the write and never will, because etcd is unreachable
	// or full, or denies this node the write.
	Unsent
	// Done means that etcd has executed the write.
	Done
)

// RecordChange is a record that was read from etcd, or that was written or removed in etcd.
type RecordChange struct {
	Key
	Revision int64
	Text     []byte // nil means removed
}
