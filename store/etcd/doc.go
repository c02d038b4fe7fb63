// Package etcd is the connection for all requests of commands to etcd. It is the parent of the
// packages that share this connection:
//
//	schema       what etcd holds: the names of keys, and their values. No I/O.
//	client       how etcd is reached: one proven member, requests, leases, and a link that follows folders
//	watch        the source of services, which daemons follow
//	definitions  what writes services, endpoints, overrides, pools and settings of VIPs
//	fleet        nodes: who exists, how each is, and the votes of health checks
//	owners       which host owns which VIP
//
// All packages below it import schema and client, and do not import each other (test/deps).
//
// A Source follows the first five folders of schema, hosts and its own node's config. A Presence
// writes its own node's live, status and hosts. While a service requests fleet checks, a
// HealthBoard follows health/ on its own connection, and a HealthVoter writes its own node's folder
// there. A Writer writes everything else, and a Registrar writes a single endpoint. A daemon's role
// needs the corresponding rights. Without the rights to vips, hosts or config, a daemon follows the
// other folders and reports a problem.
package etcd
