package httpserve

import (
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peer returns the process that opened c, with its credentials at that time (SO_PEERCRED, and
// SO_PEERGROUPS of Linux 4.13).
func peer(c *net.UnixConn) (who caller, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return who, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			who = caller{uid: int(cred.Uid), groups: append(peerGroups(fd), int(cred.Gid))}
		}
	}); err != nil {
		return who, err
	}
	if failed != nil {
		return who, fmt.Errorf("reading the credentials of a caller: %w", failed)
	}
	return who, nil
}

// peerGroups returns the supplementary groups of the process that opened the socket fd. It returns
// nil if the groups can't be read, because the kernel is old or there are too many groups. Then
// only the primary group counts.
func peerGroups(fd uintptr) []int {
	const maxGroups = 65536 // NGROUPS_MAX of the kernel's include/uapi/linux/limits.h
	for size := 64; size <= maxGroups; size *= 4 {
		groups := make([]uint32, size)
		bytes := uint32(size) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&bytes)), 0)
		switch {
		case errno == 0:
			all := make([]int, 0, size)
			for _, g := range groups[:bytes/4] {
				all = append(all, int(g))
			}
			return all
		case !errors.Is(errno, unix.ERANGE):
			return nil
		}
	}
	return nil
}
