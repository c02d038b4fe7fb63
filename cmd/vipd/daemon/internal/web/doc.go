// Package web answers requests to api.http: the status page (package page), metrics, and health for
// load balancers and probes.
//
//	request -> does it name this host? -> /, /metrics, /healthz, /readyz -> a view of one moment
//
// The package changes nothing and requires no password, so it answers only under names that a
// foreign web page can't use (host.go).
package web
