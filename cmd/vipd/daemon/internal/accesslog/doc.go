// Package accesslog writes a line for each connection that ends, to the destination that the
// connection's service names.
//
//	dataplane.Follow -> record -> queue of a file, or of vipd's own log -> write
//
// Services that name the same file share a queue. No connection waits for a disk, and no file waits
// for another. If a queue is full, lines are dropped and counted. An idle file is closed. A file
// that was moved away is created again within a second, so logrotate needs no signal.
package accesslog
