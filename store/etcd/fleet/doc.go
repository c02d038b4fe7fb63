// Package fleet has the nodes of a fleet: a Presence tells the others how a node is, a Registry
// lists and configures nodes, a HealthVoter writes what a node's health checks find, and a
// HealthBoard follows what all nodes find.
//
// # Health checks
//
// What nodes have found is a key for each node and target, written when a verdict changes and never
// else, many in one transaction. Each node has its own folder, so that its role can't vote for
// others. Who takes part is in that folder too, and not read from nodes/: there every status would
// come along, from every host to every host.
//
// What it does not do: it does not decide what votes result in.
package fleet
