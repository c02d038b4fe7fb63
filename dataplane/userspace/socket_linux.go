package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// acceptedKeepAlive changes nothing, because accepted connections inherit the listener's options.
// This saves four system calls for each.
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

// anyAddress lets a socket be bound to a VIP that this host does not have yet.
func anyAddress(fd uintptr, a netip.Addr) error {
	if a.Is6() {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
}

// announce limits the segment size that a socket's connections announce and send. With 0, their
// links limit it. The kernel refuses more than its largest unscaled window (MAX_TCP_WINDOW).
func announce(fd uintptr, mss int) error {
	if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, min(mss, 32767)); err != nil {
		return fmt.Errorf("bounding the segment size: %w", err)
	}
	return nil
}

// look reads details of a socket from the kernel that a relay can't see.
func look(c *net.TCPConn) glance {
	g := glance{quiet: forever}
	raw, err := c.SyscallConn()
	if err != nil {
		return g
	}
	_ = raw.Control(func(fd uintptr) { // fails only if it is closed
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			g = glance{time.Duration(info.Last_data_recv) * time.Millisecond, info.Bytes_acked, info.Unacked > 0 || info.Notsent_bytes > 0}
		}
	})
	return g
}
