// Package fleetchecks is a node's part in the health checks that the hosts of a fleet share (health.from = "fleet"), so that each
// endpoint is checked by a few of them, whatever their number.
//
// Who checks what, and what votes come to, balancer/health/quorum decides; how votes travel is store/etcd's (HealthBoard,
// HealthVoter). This package is what connects the two with the node's own checks (probe.Runner):
//
//	PREFIX/health/ -> board -> coordinator -> what this node checks -> runner -> its verdicts -> votes -> voter -> PREFIX/health/NODE/
//	                              |
//	                              +-> the majority's verdicts -> compile, history
//
// Verdicts has the runner check this node's part, and returns what all nodes have found; Vote takes in what the runner finds;
// Run keeps in touch with etcd. Where that is away, the node decides alone, and says so.
//
// The package makes no checks, and does not decide what is wanted.
package fleetchecks
