// Package fleet tests a whole fleet: built vipd processes, each in a network namespace of its own,
// that share services through a real etcd cluster of three, with real clients at each of them; and,
// where only etcd and the source count, hundreds of sources in one process.
//
//	etcd m0 m1 m2 (namespace of the test)
//	   |  |  |      a relay for each member and node: the network that a test can cut
//	   n1 n2 n3     vipd, with local clients; behind each one a client's namespace c1 c2 c3
//	    \ | /
//	    bridge      servers e1 to e4, in a namespace of theirs
//
// A relay listens in the node's namespace, on the address and port that the member has in its own,
// so that every node reaches etcd under the same URLs, certificates included.
//
// The tests hold five times the bounds that are aimed at, for a short time; the benchmarks print
// the figures, and let faults last longer:
//
//	go test -run '^$' -bench . ./test/fleet
package fleet
