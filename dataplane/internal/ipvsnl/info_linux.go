package ipvsnl

import (
	"context"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// soGetInfo is IP_VS_SO_GET_INFO. The netlink message with a similar name does not contain the
// number of virtual servers.
const soGetInfo = 64 + 1024 + 64 + 1

// getInfo is struct ip_vs_getinfo.
type getInfo struct{ version, size, services uint32 }

// Services4 implements Conn.
func (k *Client) Services4(ctx context.Context) (int, error) {
	const doing = "counting IPVS virtual servers"
	if err := k.usable(ctx); err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	i, _, err := watch(ctx, k.limit, readInfo)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	return int(i.services), nil
}

func readInfo() (i getInfo, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return i, err
	}
	defer unix.Close(fd)
	size := uint32(unsafe.Sizeof(i))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, soGetInfo,
		uintptr(unsafe.Pointer(&i)), uintptr(unsafe.Pointer(&size)), 0)
	switch {
	case errno == syscall.ENOPROTOOPT:
		return i, fmt.Errorf("%w: it is not loaded", ErrUnsupported)
	case errno != 0:
		return i, errno
	}
	return i, nil
}
