package failover

import "vipd/balancer/failover/local"

// Message is a heartbeat or an answer between two nodes.
type Message struct {
	Kind MessageKind
	From string
	Boot ID
	// Session is the sender's session in a Beat, the receiver's in an Answer, and Subject's in an
	// Ask or a Vote.
	Session ID
	Subject string
	// Sent is the time of a Beat on the sender's clock. The Answer returns it.
	Sent local.Time
	// Echo is the stamp of the newest Beat that the sender of a Beat has received from the
	// receiver. It proves that this Beat was sent later. Echoless reports whether the sender runs a
	// version that sends no echoes.
	Echo     Stamp
	Echoless bool
	// Ready reports whether the sender of a Beat can hold VIPs. Away reports whether the sender is
	// not connected to etcd, so it would not learn that it owns a VIP. Well has a bit for each of
	// the sender's addresses, which is set if the network of the address works.
	Ready, Away bool
	Well        uint16
}

// Stamp is the time at which a run of a node sent a Beat. The zero value is not a Beat.
type Stamp struct {
	Boot ID
	Sent local.Time
}

// MessageKind is the purpose of a message.
type MessageKind byte

// The kinds of messages.
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
