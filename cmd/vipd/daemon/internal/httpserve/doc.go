// Package httpserve serves HTTP to clients that may be hostile: it bounds what they can hold, and finds out who calls on a Unix
// socket.
//
//	listener -> free connection -> caller's credentials -> body within its limits -> handler -> writes within their limit
//
// It knows no request: packages apiserver and web answer them, with [Answer] and [Refuse].
package httpserve
