// Package accesslog writes a line for each connection that ends, to where its service wants it.
//
//	dataplane.Follow -> tell -> queue of a file, or of vipd's own log -> write
//
// Services that name the same file share its queue. Nothing waits for a disk, nor one file for another: a line that the queue has no
// room for is counted and dropped. A file that nothing is written to is closed, and one that was moved away is made anew within a
// second, so that logrotate needs no signal.
package accesslog
