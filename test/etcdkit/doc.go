// Package etcdkit lets tests use real etcd: Debian's server on its own loopback ports, with one
// member or several, and optionally with TLS and users.
//
//	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
//	client := c.Client()
//	c.Members[0].Kill()
//
// Everything ends with the test. On a machine without etcd, the test is skipped with that reason. A
// Relay between a client and a member simulates a network that a test can cut.
package etcdkit
