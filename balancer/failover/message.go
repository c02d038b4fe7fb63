package failover

import "vipd/balancer/failover/local"

// Message is a heartbeat or an answer between two nodes.
type Message struct {
	Kind MessageKind
	From string
	Boot ID
	// Session is the sender's session in a Beat, the receiver's session in an Answer, and Subject's
	// session in an Ask or a Vote.
	Session ID
	Subject string
	// Sent is when a Beat was sent, by the sender's clock. The Answer returns the same value.
	Sent local.Time
	// In a Beat, Echo is the stamp of the newest Beat that the sender has received from the
	// receiver. It proves that this Beat was sent later than that one. Echoless reports whether the
	// sender runs a version that sends no echoes.
	Echo     Stamp
	Echoless bool
	// Ready reports whether the sender of a Beat can hold VIPs. Away reports whether the sender is
	// not connected to etcd, so it would not learn that it owns a VIP. Well has a bit for each of
	// the sender's addresses, which is set if the address's network works.
	Ready, Away bool
	Well        uint16
}

// Stamp identifies a Beat by the run that sent it and the time when it was sent. The zero value is
// not a Beat.
type Stamp struct {
	Boot ID
	Sent local.Time
}

// MessageKind is the purpose of a message.
type MessageKind byte

// These are the kinds of messages.
const (
	// Beat shows that its sender is alive, and requests a confirmation of its session.
	Beat MessageKind = iota + 1
	// Answer confirms a Beat.
	Answer
	// Ask asks a juror whether a session is dead.
	Ask
	// Vote answers an Ask, and means that the session is dead.
	Vote
)
