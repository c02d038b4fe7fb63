// Package fleet tests a whole fleet: real vipd processes, each in its own network namespace, that
// share services through a real etcd cluster of three members, with real clients. Tests that need
// only etcd and its sources run hundreds of sources in one process.
//
//	etcd m0 m1 m2 (namespace of the test)
//	   |  |  |      a relay for each member and node: the network that a test can cut
//	   n1 n2 n3     vipd, with local clients; behind each one a client's namespace c1 c2 c3
//	    \ | /
//	    bridge      servers e1 to e4, in their own namespace
//
// A relay listens in the node's namespace, on the address and port that the member has in the
// test's namespace. So all nodes use the same etcd URLs and certificates.
//
// The tests are short, and permit five times the target limits. The benchmarks print the figures,
// and use longer faults:
//
//	go test -run '^$' -bench . ./test/fleet
package fleet
