// Package accesslog writes a line for each connection that ends, to the destination that its
// service names.
//
//	dataplane.Follow -> tell -> queue of a file, or of vipd's own log -> write
//
// Services that name the same file share its queue. Nothing waits for a disk, and no file waits for
// another: a line that does not fit into the queue is counted and dropped. An idle file is closed,
// and a file that was moved away is created again within a second, so logrotate needs no signal.
package accesslog
