package userspace

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

type socketOption struct{ level, name, value int }

// keepAliveOptions make a socket detect that the other side has disappeared.
var keepAliveOptions = []socketOption{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle / time.Second)},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive.Interval / time.Second)},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.Count},
}

// inheritOptions sets the options that connections inherit from their listener, which saves five
// system calls for each.
func inheritOptions(fd uintptr) error {
	for _, o := range keepAliveOptions {
		if err := unix.SetsockoptInt(int(fd), o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// anyAddress lets a socket be bound to a VIP that this host does not have yet.
func anyAddress(fd uintptr, a netip.Addr) error {
	if a.Is6() {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
}

// maxSegment is the kernel's maximum segment size (MAX_TCP_WINDOW).
const maxSegment = 32767

// announce limits the segment size that a socket's connections announce and send. With 0, their
// links limit it.
func announce(fd uintptr, mss int) error {
	if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, min(mss, maxSegment)); err != nil {
		return fmt.Errorf("bounding the segment size: %w", err)
	}
	return nil
}
