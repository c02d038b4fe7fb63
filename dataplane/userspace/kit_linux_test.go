package userspace

import "net"

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
