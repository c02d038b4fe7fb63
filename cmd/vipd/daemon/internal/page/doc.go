// Package page provides the status page of api.http: one HTML document for the node, one for each
// service and one for the fleet, without external assets.
//
//	GET /                    the node: mode, store, problems, services with rates, latest events
//	GET /services/NAME       one service: its endpoints
//	GET /fleet               the nodes in etcd, if the store is a fleet's
//	GET /live?of=...         the same content at intervals, as Server-Sent Events
//
// Pages are complete without scripts. A script updates their content. All readers share the
// content, which is generated every two seconds, or less often if that used more than a twentieth
// of a CPU. The package does not change any state.
package page
