// Package sockets lists the listening sockets in this network namespace, including unconnected UDP
// sockets. It reads them from /proc/net.
//
//	for _, s := range sockets.All() {
//		fmt.Println(s.At, s.Inode)
//	}
//
// It needs no privileges, except to find the owners of other users' sockets. To find an owner, it
// searches /proc/PID/fd for the socket's inode. On systems without /proc, it finds no sockets.
package sockets
