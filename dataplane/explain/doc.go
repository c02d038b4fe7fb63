// Package explain predicts whether a client's connection is served, and explains why. The answer
// covers the holder of the address, the frontend, the source check, affinity, each endpoint with
// its share, the client address that the endpoint sees, and the path of its reply.
//
// The package does not know the rules itself. Which frontends are served depends on the compiled
// configuration and the engine. All other facts come from the kernel: the objects of the dataplane
// and the guard, and the routes. Package test/packetflow compares the verdicts with real packets in
// every mode.
//
//	n := explain.Inputs{Desired: desired, Applied: done, Mode: "nftables", Dataplane: dp, Connections: connections, Held: held}
//	answer, err := n.Explain(ctx, explain.Question{Client: client, To: key})
package explain
