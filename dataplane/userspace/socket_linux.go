package userspace

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

type socketOption struct{ level, name, value int }

// keepAliveOptions make the kernel detect that a connection's peer has disappeared.
var keepAliveOptions = []socketOption{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Idle / time.Second)},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive.Interval / time.Second)},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive.Count},
}

// inheritOptions sets the options of a listener that its connections inherit. This saves five
// system calls for each connection.
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

// announce limits the segment size that a socket's connections announce and send. If mss is 0, the
// size depends on each connection's link.
func announce(fd uintptr, mss int) error {
	if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, min(mss, maxSegment)); err != nil {
		return fmt.Errorf("limiting the segment size: %w", err)
	}
	return nil
}
