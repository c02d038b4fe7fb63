// Package sockets reads which sockets of this network namespace wait for clients, from /proc/net.
//
//	for _, s := range sockets.All() {
//		fmt.Println(s.At, s.Inode)
//	}
//
// It needs no privilege. The owner of a socket is found by its inode in the /proc/PID/fd of a
// readable process. Systems without /proc have no sockets.
package sockets
