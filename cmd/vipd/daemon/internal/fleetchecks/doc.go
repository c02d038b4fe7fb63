// Package fleetchecks implements a node's part in the health checks that the hosts of a fleet share
// (health.from = "fleet"). A few hosts check each endpoint, regardless of the size of the fleet.
//
// Package balancer/health/quorum decides which nodes check an endpoint, and counts votes. Package
// store/etcd transports votes (HealthBoard, HealthVoter). This package connects both to the node's
// own checks (probe.Runner):
//
//	PREFIX/health/ -> board -> coordinator -> this node's targets -> runner -> its verdicts -> votes -> voter -> PREFIX/health/NODE/
//	                              |
//	                              +-> the majority's verdicts -> compile, history
//
// Verdicts starts this node's part of the checks, and returns the fleet's verdicts. Vote receives
// the runner's verdicts. Run maintains the connection to etcd. While etcd is unavailable, the node
// decides alone, and reports that.
//
// The package performs no checks, and does not decide which endpoints need a check.
package fleetchecks
