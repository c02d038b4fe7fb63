// Package etcdkit lets tests use real etcd: Debian's server on its own loopback ports, with one
// member or several, and optionally with TLS and users.
//
//	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
//	client := c.Client()
//	c.Members[0].Kill()
//
// Everything stops when the test ends. Without etcd on the machine, the test is skipped, and the
// reason is logged. A Relay between a client and a member simulates a network that a test can cut.
package etcdkit
