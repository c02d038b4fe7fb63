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

// eventRoom is how much the kernel keeps of what it tells, in bytes: thousands of changes by others, or generations of our own.
const eventRoom = 1 << 20

// eventPatience is how long the kernel may take to tell of a transaction that it has applied.
const eventPatience = time.Second

// events are what the kernel tells of transactions: each change with its table, and behind the changes the generation.
type events struct {
	sock *nlsock.Socket
	told uint32 // the generation of the last transaction that was told of
	// touched counts, by table, what other programs have changed; lost counts where the kernel could not tell.
	touched map[Table]uint64
	lost    uint64
}

// Listen subscribes to the kernel's reports of transactions, for Foreign. Without the privilege there are none.
func (c *Conn) Listen() error {
	sock, err := listen(eventRoom)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	e := &events{sock: sock, touched: map[Table]uint64{}}
	if e.told, err = c.Generation(); err != nil { // of what was committed before, nothing is told
		_ = sock.Close()
		return fmt.Errorf("listening to nf_tables: %w", err)
	}
	c.events = e
	return nil
}

// listen opens a socket to which the kernel tells of transactions, and for which it keeps so many bytes.
func listen(room int) (*nlsock.Socket, error) {
	sock, err := nlsock.Subscribe(unix.NETLINK_NETFILTER, room, eventGroup)
	if err != nil {
		return nil, err
	}
	if err := SkipOwn(sock, true); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return sock, nil
}

// Foreign counts the changes that other programs have made in a table, up to a generation. What the kernel did not tell of counts
// as one; without Listen each generation does that this connection has not made.
func (c *Conn) Foreign(t Table, upTo uint32) uint64 {
	if c.events == nil {
		return uint64(upTo - c.commits)
	}
	c.events.hear(upTo)
	return c.events.touched[t] + c.events.lost
}

// hear reads what was told, until it has come to a generation: the kernel tells of a transaction just after it has begun to hold.
func (e *events) hear(upTo uint32) {
	for int32(upTo-e.told) > 0 { // generations may pass 1<<32
		m, err := e.sock.Within(eventPatience)
		if err != nil {
			e.lost++
			e.told = upTo
			return
		}
		e.note(&m)
	}
}

func (e *events) note(m *nlsock.Messages) {
	for m.Next() {
		if m.Kind>>8 != subsystem || len(m.Body) < 4 {
			continue
		}
		kind, family := m.Kind&0xff, TableFamily(m.Body[0])
		for a := nlsock.In(m.Body[4:]); a.Next(); {
			switch {
			case kind == msgNewGen && a.Kind == genID:
				e.come(number(a.Value))
			case kind != msgNewGen && a.Kind == eventTable:
				e.touched[Table{family, text(a.Value)}]++
			}
		}
	}
}

// come takes in that a generation was told of: one that was given up may come late, and one that is skipped had no room.
func (e *events) come(generation uint32) {
	ahead := int32(generation - e.told)
	if ahead > 1 {
		e.lost++
	}
	if ahead > 0 {
		e.told = generation
	}
}

// deletedRoom is how much the kernel keeps of a transaction of another program, in bytes: some 20,000 rules, deleted and added.
const deletedRoom = 64 << 20

// DeletedRules calls rule with the attributes of each rule of a table that is deleted while during runs, and with its chain: the
// kernel reads a rule's counters once no packet begins to pass it. Of what exceeds deletedRoom, some are missing.
func DeletedRules(x Table, during func(), rule func(chain string, attrs []byte)) error {
	sock, err := listen(deletedRoom)
	if err != nil {
		during()
		return err
	}
	during()
	sock.Drain() // the kernel has told before the other program has its answer
	for {
		m, err := sock.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			return sock.Close()
		}
		for m.Next() {
			if m.Kind == subsystem<<8|msgDelRule && len(m.Body) >= 4 && TableFamily(m.Body[0]) == x.Family {
				deletedRule(m.Body[4:], x.Name, rule)
			}
		}
	}
}

func deletedRule(attrs []byte, table string, rule func(chain string, attrs []byte)) {
	of, chain := "", ""
	for a := nlsock.In(attrs); a.Next(); {
		switch a.Kind {
		case ruleTable:
			of = text(a.Value)
		case ruleChain:
			chain = text(a.Value)
		}
	}
	if of == table {
		rule(chain, attrs)
	}
}
