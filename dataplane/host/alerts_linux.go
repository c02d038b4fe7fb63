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

// alertBuffer is the size of a socket's receive buffer. It can be small because the messages are
// not read, and a full buffer is also an alert.
const alertBuffer = 32 << 10

// alerts are sockets that receive the kernel's events about nft rules, addresses, links and routes
// that other programs change. An event only triggers a check, so its content is not read. The
// kernel sends no events about ipsets and the rules of iptables-legacy.
type alerts []*nlsock.Socket

// openAlerts opens a socket for each kind of event. It skips a kind that the kernel does not
// support or that the process may not receive, because the engine checks once a second anyway.
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
		case errors.Is(err, unix.EPROTONOSUPPORT): // the kernel does not support nf_tables
		case errors.Is(err, fs.ErrPermission): // nf_tables events need CAP_NET_ADMIN
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
func (k *handles) Alerts(ctx context.Context, tell func()) {
	var readers sync.WaitGroup
	for _, s := range k.alerts {
		_ = s.SetReadDeadline(time.Time{}) // an earlier engine may have left an expired deadline
		stop := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
		readers.Go(func() {
			defer stop()
			for {
				_, err := s.Receive()
				if err != nil && !errors.Is(err, unix.ENOBUFS) {
					return // ctx is done, which set the deadline
				}
				tell()
			}
		})
	}
	readers.Wait()
}
