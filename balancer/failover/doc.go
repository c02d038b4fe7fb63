// Package failover decides which of several hosts holds a VIP with hold = "one". Two hosts never
// hold it at the same time.
//
// It has no I/O and no clock. [Node] is one host: its methods receive an event and its time, and
// return the actions to perform, in order. The daemon performs them. A simulation and a model check
// use the same code.
//
// etcd records the owner: vips/ADDRESS names a node and its session. The session shows that its
// node is alive: the node sends heartbeats, and the session's jury confirms them. A session is
// confirmed until its deadline, which is Confirm after the sending of a heartbeat that most of the
// jury has confirmed, or of a successful renewal in etcd. The gate, a timer in the kernel, silences
// the VIPs of a host whose session is no longer confirmed, even if the process hangs or is killed:
//
//	heartbeats --> jurors --> deadline --> refreshes of the gate, until Gate before the deadline
//	                 |
//	                 +-- silent for Silence --> votes --> one transaction: session revoked, its VIPs change owner
//
// Silence is longer than the sum of Confirm and Gate, so the gate of a session is closed
// permanently before the session can be revoked. Each heartbeat echoes the newest heartbeat that
// its sender has received from the receiver. A heartbeat counts once, and only if the echoed
// heartbeat is recent, so recorded heartbeats can't keep a dead session alive.
//
// Only the live session that a VIP's key names may change the key. After that session is revoked,
// any live session may claim the VIP.
//
// [Timing], [Juror] and the functions of jury.go contain the rules on which safety depends. A model
// check covers all states of these rules. Another model check runs [Node] through all states in
// which a VIP moves between live sessions. Node dispatches events to its parts:
//
//	env, view, writer     options and actions; etcd's records; transactions
//	session, gate         this node's session, and the kernel's gate
//	peers, jurors         what heartbeats report; votes on other sessions
//	vips, ranking         the VIPs; the best node for each
//	placement, holding    which VIPs belong elsewhere; binding them and giving them away (give.go, reclaim.go)
//	takeover              claiming free VIPs, and revoking silent sessions (revoke.go)
package failover
