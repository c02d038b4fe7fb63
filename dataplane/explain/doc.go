// Package explain says what would happen to a connection that a client opens, and why: who holds the address, which frontend it
// meets, the source check, affinity, each endpoint with its share, whose address the endpoint sees, and the way back.
//
// It has no other rules. What is served is what Compile made and the engine applied; the choice is the dataplane's, which
// reads the kernel; what the guard does is the guard's, which reads its sets; the ways are the kernel's routes. test/packetflow
// holds its verdicts to real packets in every mode.
//
//	n := explain.Inputs{Desired: desired, Applied: done, Mode: "nftables", Dataplane: dp, Connections: connections, Held: held}
//	answer, err := n.Explain(ctx, explain.Question{Client: client, To: key})
package explain
