// Package httpserve serves HTTP to clients that may be hostile: it limits the resources of clients,
// and identifies the caller on a Unix socket.
//
//	listener -> free connection -> caller's credentials -> body within its limits -> handler -> writes within their limit
//
// It does not interpret requests. Packages apiserver and web answer them with [Answer] and
// [Refuse].
package httpserve
