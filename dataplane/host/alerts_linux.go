package host

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/nlsock"
)

// nftGroup is NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h).
const nftGroup = 7

// alertBuffer is how much the kernel keeps of what it tells: that there was something is enough.
const alertBuffer = 32 << 10

// alerts are sockets on which the kernel tells of others' changes of nft's rules, of addresses, of links and of routes. What it tells is not
// read: it is a reason to look. The legacy backend and ipsets tell nothing.
type alerts []*nlsock.Socket

// openAlerts opens a socket for each kind of alert. A kind that the kernel lacks, or that needs a privilege this process
// does not have, is left out: the engine looks once a second anyway.
func openAlerts() (all alerts, err error) {
	rules := func() (*nlsock.Socket, error) {
		s, err := nlsock.Subscribe(unix.NETLINK_NETFILTER, alertBuffer, nftGroup)
		if err != nil {
			return nil, err
		}
		if err := nft.SkipOwn(s, false); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return s, nil
	}
	for _, open := range []func() (*nlsock.Socket, error){rules, func() (*nlsock.Socket, error) { return subscribe(alertBuffer) }} {
		s, err := open()
		switch {
		case err == nil:
			all = append(all, s)
		case errors.Is(err, unix.EPROTONOSUPPORT): // a kernel without nft
		case errors.Is(err, fs.ErrPermission): // nft's changes are told to those with CAP_NET_ADMIN
		default:
			return nil, errors.Join(err, all.close())
		}
	}
	return all, nil
}

func (a alerts) close() (err error) {
	for _, s := range a {
		err = errors.Join(err, s.Close())
	}
	return err
}

// Alerts implements dataplane.Host.
func (k *kernel) Alerts(ctx context.Context, tell func()) {
	var readers sync.WaitGroup
	for _, s := range k.alerts {
		_ = s.SetReadDeadline(time.Time{}) // the engine before may have ended
		stop := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
		readers.Go(func() {
			defer stop()
			for {
				_, err := s.Receive()
				if err != nil && !errors.Is(err, unix.ENOBUFS) {
					return // the end
				}
				tell()
			}
		})
	}
	readers.Wait()
}
