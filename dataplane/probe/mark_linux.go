package probe

import "golang.org/x/sys/unix"

// setMark sets the firewall mark of a socket's packets. This needs CAP_NET_ADMIN.
func setMark(fd uintptr, mark uint32) error {
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
}
