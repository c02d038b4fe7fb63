// Package page is the status page of api.http: one HTML document for the node, one for each service and one for the fleet, without assets from elsewhere.
//
//	GET /                    the node: mode, store, problems, services with rates, latest events
//	GET /services/NAME       one service: its endpoints
//	GET /fleet               the nodes as etcd has them, where the store is a fleet's
//	GET /live?of=...         the same content again and again, as Server-Sent Events
//
// Pages are complete without script; with it they replace their content. Whatever the number of readers, what
// they see is made once in two seconds, and less often where that takes more than a twentieth of a processor. It reads only, and changes nothing.
package page
