// Package failover decides which of several hosts holds a VIP with hold = "one", so that there are never two.
//
// It has no I/O and no clock. Node is one host: its methods take what happened and when, and return what is to be done, in
// order. A daemon carries that out; a simulation and a model check drive the same code.
//
// etcd says who owns: vips/ADDRESS names a node and its session. The session says who is alive: its holder sends heartbeats,
// and its jury confirms them. A session is confirmed until the deadline, which is Confirm after the sending of a heartbeat that
// most of the jury has confirmed, or after the asking for a renewal in etcd that succeeded. The gate, a timer in the kernel,
// silences the VIPs of a host whose session is no longer confirmed, whatever has become of the process:
//
//	heartbeats --> jurors --> deadline --> refreshes of the gate, until Gate before the deadline
//	                 |
//	                 +-- silent for Silence --> votes --> one transaction: session deleted, its VIPs are another's
//
// As Silence is longer than Confirm and Gate together, the gate of a session is closed for good before it can be buried.
// A heartbeat returns the newest one of its receiver, and counts once, and only if that is young: what somebody recorded keeps no dead
// session alive.
//
// A VIP's key is changed by the live session that it names, or after that session was buried, and by no other.
//
// The parts: Timing, Juror and the functions beside it are the rules that safety rests on, and what the model checks
// exhaustively; another model checks Node itself, in all states of a VIP that moves while sessions last. Node keeps what it
// knows of etcd (record.go), of its session (session.go), gate and VIPs (gate.go), its peers (peer.go), buries and takes
// (bury.go, take.go), gives away (give.go), and ranks hosts (choice.go).
package failover
