package nft

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// eventGroup is NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h).
const eventGroup = 7

// eventRoom is how much the kernel keeps of what it tells, in bytes: thousands of changes.
const eventRoom = 1 << 20

// eventPatience is how long the kernel may take to tell of a transaction that it has carried out.
const eventPatience = time.Second

// events are what the kernel tells of transactions: each change with its table, and behind the changes the generation.
type events struct {
	sock *nlsock.Socket
	own  uint32 // the address of the socket whose transactions are our own
	told uint32 // the generation of the last transaction that was told of
	// touched counts, by table, what other programs have changed; lost counts where the kernel could not tell.
	touched map[Table]uint64
	lost    uint64
}

// Listen has the kernel tell of transactions from now on, for Foreign. Without the privilege for it nothing is told.
func (c *Conn) Listen() error {
	sock, err := nlsock.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	e := &events{sock: sock, touched: map[Table]uint64{}}
	failed := sock.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventRoom) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, eventRoom)
		}
		err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, eventGroup)
	})
	if failed == nil && err == nil {
		e.own, err = c.sock.Port()
	}
	if err == nil {
		e.told, err = c.Generation() // of what was committed before, nothing is told
	}
	if err = errors.Join(failed, err); err == nil {
		c.events = e
		return nil
	}
	_ = sock.Close()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	return fmt.Errorf("listening to nf_tables: %w", err)
}

// Foreign counts the changes that other programs have made in a table, up to a generation. What the kernel did not tell of counts
// as one; without Listen each generation does.
func (c *Conn) Foreign(t Table, upTo uint32) uint64 {
	if c.events == nil {
		return uint64(upTo)
	}
	c.events.hear(upTo)
	return c.events.touched[t] + c.events.lost
}

// hear reads what was told, until it has come to a generation: the kernel tells of a transaction just after it has begun to hold.
func (e *events) hear(upTo uint32) {
	_ = e.sock.SetReadDeadline(time.Now().Add(eventPatience))
	for int32(upTo-e.told) > 0 { // generations may pass 1<<32
		m, err := e.sock.Receive()
		if err != nil {
			e.lost++
			e.told = upTo
			return
		}
		e.note(&m)
	}
}

// skip forgets what was told up to a generation: no other program has committed meanwhile.
func (e *events) skip(to uint32) {
	e.sock.Discard()
	e.told = to
}

func (e *events) note(m *nlsock.Messages) {
	for m.Next() {
		if m.Kind>>8 != subsystem || len(m.Body) < 4 {
			continue
		}
		kind, family := m.Kind&0xff, Family(m.Body[0])
		for a := nlsock.In(m.Body[4:]); a.Next(); {
			switch {
			case kind == msgNewGen && a.Kind == genID:
				e.told = number(a.Value)
			case kind != msgNewGen && m.Port != e.own && a.Kind == eventTable:
				e.touched[Table{family, text(a.Value)}]++
			}
		}
	}
}
