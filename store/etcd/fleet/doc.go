// Package fleet reads and writes the nodes of a fleet. A Presence publishes a node's status to
// other nodes, and a Registry lists and configures nodes. A HealthVoter writes the results of a
// node's health checks, and a HealthBoard follows the results of all nodes.
//
// # Health checks
//
// The results are stored in a key for each node and target. A key is written only when its verdict
// changes, together with many others in a transaction. Each node has its own folder, so its etcd
// role can't vote on behalf of other nodes. The list of participants is also in these folders.
// Reading it from nodes/ would send every status of every host to every host.
//
// The package does not evaluate votes.
package fleet
