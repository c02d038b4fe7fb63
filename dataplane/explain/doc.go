// Package explain predicts the fate of a client's connection, and explains it: the holder of the
// address, the frontend, the source check, affinity, each endpoint with its share, the address that
// the endpoint sees, and the way back.
//
// It has no rules of its own. Compile and the engine determine what is served. The dataplane reads
// the choice from the kernel, the guard reads its sets, and the routes are the kernel's. The
// package test/packetflow compares the verdicts with real packets in every mode.
//
//	n := explain.Inputs{Desired: desired, Applied: done, Mode: "nftables", Dataplane: dp, Connections: connections, Held: held}
//	answer, err := n.Explain(ctx, explain.Question{Client: client, To: key})
package explain
