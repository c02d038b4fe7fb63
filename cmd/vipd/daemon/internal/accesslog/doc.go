// Package accesslog writes a line for each connection that ends.
//
//	dataplane.Follow -> tell -> queue -> write -> file, or vipd's own log
//
// Nothing waits for the disk: a line that the queue has no room for is counted and dropped. A file that was moved away is made anew
// within a second, so that logrotate needs no signal.
package accesslog
