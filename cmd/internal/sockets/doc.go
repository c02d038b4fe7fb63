// Package sockets lists the sockets of this network namespace that wait for clients, from
// /proc/net.
//
//	for _, s := range sockets.All() {
//		fmt.Println(s.At, s.Inode)
//	}
//
// It needs no privileges. To find the owner of a socket, it searches /proc/PID/fd of readable
// processes for the socket's inode. On systems without /proc, it finds no sockets.
package sockets
