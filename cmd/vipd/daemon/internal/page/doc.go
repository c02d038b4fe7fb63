// Package page provides the status page of api.http: one HTML document for the node, one for each
// service and one for the fleet, without external assets.
//
//	GET /                    the node: mode, store, problems, services with rates, latest events
//	GET /services/NAME       one service: its endpoints
//	GET /fleet               the nodes in etcd, if the store is a fleet's
//	GET /live?of=...         the same content at intervals, as Server-Sent Events
//
// Pages are complete without scripts; a script replaces their content. All readers share content
// that is made every two seconds, or less often if that needs more than a twentieth of a CPU. The
// package only reads.
package page
