// Package web answers the requests to api.http: the status page (package page), metrics, and health
// for load balancers and probes.
//
//	request -> is it for a name of this host? -> /, /metrics, /healthz, /readyz -> a view of one moment
//
// It changes nothing and needs no password, so it answers only under names that no foreign web page
// can use (host.go).
package web
