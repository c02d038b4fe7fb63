// Package api defines the protocol between vipctl and vipd, and provides a client: HTTP requests
// with JSON bodies over the daemon's Unix socket. The daemon serves this protocol. Every vipctl
// verb that needs a running daemon uses Client.
//
//	GET    /v1/status
//	GET    /v1/services  /v1/endpoints  /v1/frontends      with ?watch=1: a line of JSON for each state
//	GET    /v1/connections?service=NAME
//	GET    /v1/diff                                         compares with the kernel first
//	POST   /v1/reload
//	GET    /v1/overrides
//	POST   /v1/overrides                                    an OverrideRequest; answers with an OverrideResult
//	POST   /v1/check                                        a CheckRequest; answers with a CheckResult
//	POST   /v1/check-direct                                 a DirectRequest; answers with a list of DirectPaths
//	GET    /v1/events?since=SEQ&kind=KIND&service=NAME      EventPages, a line of JSON each; with &follow=1 later events also
//	                                                        follow, until the caller disconnects
//
// The answer to a failed request has an HTTP error status, and an Error as the body.
package api
