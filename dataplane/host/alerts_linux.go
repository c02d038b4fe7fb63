package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// nftGroup is NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h).
const nftGroup = 7

// alertBuffer is how much the kernel keeps of what it tells: that there was something is enough.
const alertBuffer = 32 << 10

// alerts are sockets on which the kernel tells of changes of nft's rules, of addresses and of links. What it tells is not
// read: it is a reason to look. The legacy backend and ipsets tell nothing.
type alerts []*os.File

// openAlerts opens a socket for each kind of alert. A kind that the kernel lacks, or that needs a privilege this process
// does not have, is left out: the engine looks once a second anyway.
func openAlerts() (all alerts, err error) {
	for _, from := range []struct {
		protocol int
		groups   uint32
	}{
		{unix.NETLINK_NETFILTER, 1 << (nftGroup - 1)},
		{unix.NETLINK_ROUTE, unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR},
	} {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, from.protocol)
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			continue // a kernel without nft
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("opening a socket for alerts: %w", err), all.close())
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, alertBuffer) // else it keeps more
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: from.groups})
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			_ = unix.Close(fd)
			continue // nft's changes are told to those with CAP_NET_ADMIN
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("subscribing to alerts: %w", err), unix.Close(fd), all.close())
		}
		all = append(all, os.NewFile(uintptr(fd), "netlink alerts"))
	}
	return all, nil
}

func (a alerts) close() (err error) {
	for _, f := range a {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Alerts implements dataplane.Host.
func (h *Host) Alerts(ctx context.Context, tell func()) {
	var readers sync.WaitGroup
	for _, f := range h.alerts {
		_ = f.SetReadDeadline(time.Time{}) // the engine before may have ended
		stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
		readers.Go(func() {
			defer stop()
			var one [1]byte
			for {
				_, err := f.Read(one[:])
				if err != nil && !errors.Is(err, unix.ENOBUFS) {
					return // the end
				}
				tell()
			}
		})
	}
	readers.Wait()
}
