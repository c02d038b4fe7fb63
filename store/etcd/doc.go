// Package etcd provides the connection that commands use for all their requests to etcd. It is the
// parent of the packages that share this connection:
//
//	schema       the names and values of keys, without I/O
//	client       the connection to etcd: a proven member, requests, leases, and a link that follows folders
//	watch        the source of services, which daemons follow
//	definitions  the writers of services, endpoints, overrides, pools and settings of VIPs
//	fleet        the nodes, their status, and their votes in health checks
//	owners       the owners of VIPs
//
// All packages below it import schema and client, and do not import each other (test/deps).
//
// A Source follows the first five folders of schema, the policies of addresses, hosts, the pending
// change, and its own node's config. A Presence writes its own node's live, status and hosts. While
// a service requests fleet checks, a HealthBoard follows health/ on its own connection, and a
// HealthVoter writes its own node's folder there. A Writer writes everything else, and a Registrar
// writes a single endpoint. A daemon's role needs the corresponding rights. If the role may not
// read some of these keys, except services, endpoints and overrides, the daemon follows the others
// and reports a problem.
package etcd
