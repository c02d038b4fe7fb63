package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// These are the groups in which the kernel reports the starts and ends of flows
// (NFNLGRP_CONNTRACK_..., include/uapi/linux/netfilter/nfnetlink.h).
const (
	groupNew     = 1
	groupDestroy = 3
)

// Follow calls visit for every flow that starts or ends in the calling thread's network namespace.
// It returns nil when ctx is done. Otherwise it works like Subscribe and Run.
func Follow(ctx context.Context, visit func(began bool, flow *Flow), lost func()) error {
	e, err := subscribeTo(nil, groupNew, groupDestroy)
	if err != nil {
		return err
	}
	return errors.Join(e.run(ctx, visit, lost), e.Close())
}

// endsBuffer is the size of the receive buffer. It holds about 10,000 unread messages.
const endsBuffer = 8 << 20

// Ends is a subscription to the kernel's reports that flows have ended.
type Ends struct{ socket *nlsock.Socket }

// Subscribe subscribes to reports of ended flows in the calling thread's network namespace. With
// sysctl net.netfilter.nf_conntrack_events=2, the default since Linux 5.19, the kernel never
// reports flows that started while no program in the namespace had a subscription.
func Subscribe() (*Ends, error) { return subscribeTo(nil, groupDestroy) }

// subscribeTo subscribes to groups. If filter is not nil, the kernel drops messages that the filter
// does not accept.
func subscribeTo(filter []unix.SockFilter, groups ...int) (*Ends, error) {
	s, err := nlsock.Subscribe(unix.NETLINK_NETFILTER, endsBuffer, groups...)
	if err == nil && filter != nil {
		if err = s.Filter(filter); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("subscribing to conntrack's events: %w", err)
	}
	return &Ends{s}, nil
}

// Close cancels the subscription.
func (e *Ends) Close() error { return e.socket.Close() }

// Run calls visit for every flow that ends. It returns nil when ctx is done. The flow is valid
// until visit returns. If visit is too slow, the kernel drops messages. Run then calls lost and
// continues.
func (e *Ends) Run(ctx context.Context, visit func(*Flow), lost func()) error {
	return e.run(ctx, func(_ bool, flow *Flow) { visit(flow) }, lost)
}

func (e *Ends) run(ctx context.Context, visit func(began bool, flow *Flow), lost func()) error {
	stop := context.AfterFunc(ctx, func() { _ = e.socket.SetReadDeadline(time.Unix(0, 1)) })
	defer stop()
	var flow Flow
	for {
		m, err := e.socket.Receive()
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, unix.ENOBUFS):
			lost()
		default:
			return fmt.Errorf("reading conntrack's events: %w", err)
		}
		for m.Next() {
			if m.Kind != messageDelete && m.Kind != messageNew {
				continue
			}
			ours, err := flow.read(m.Body)
			if err != nil {
				return fmt.Errorf("reading conntrack's events: %w", err)
			}
			if ours {
				visit(m.Kind == messageNew, &flow)
			}
		}
		if m.Err != nil {
			return fmt.Errorf("reading conntrack's events: %w", m.Err)
		}
	}
}
