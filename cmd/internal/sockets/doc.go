// Package sockets reads which sockets of this network namespace wait for clients, from /proc/net.
//
//	for _, s := range sockets.All() {
//		fmt.Println(s.At, s.Inode)
//	}
//
// It needs no privilege. Whose a socket is says its inode, in the /proc/PID/fd of a process that may be read. On systems
// without /proc there are none.
package sockets
