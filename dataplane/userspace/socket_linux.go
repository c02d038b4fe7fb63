package userspace

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// acceptedKeepAlive leaves accepted connections alone: they have what the listener has, which saves four system calls
// for each.
var acceptedKeepAlive = net.KeepAliveConfig{}

// inheritKeepAlive makes a listener's connections send keepalives.
func inheritKeepAlive(fd uintptr) error {
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive.Interval / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.Count},
	} {
		if err := unix.SetsockoptInt(int(fd), o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}

// quietFor returns how long ago the connection last received data.
func quietFor(c *net.TCPConn) time.Duration {
	raw, err := c.SyscallConn()
	if err != nil {
		return forever
	}
	quiet := forever
	_ = raw.Control(func(fd uintptr) { // fails only where it is closed already
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			quiet = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return quiet
}
