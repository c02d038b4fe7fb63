// Package etcdkit lets tests use real etcd: Debian's server on loopback ports of its own, one member or several, with
// TLS and users where a test asks for them.
//
//	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
//	client := c.Client()
//	c.Members[0].Kill()
//
// Everything ends with the test. Where the machine has no etcd, the test is skipped with that reason. Relay stands
// between a client and a member, and is the network that a test can cut.
package etcdkit
