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

// eventRoom is the size of the buffer for events, in bytes. It holds thousands of changes by other
// programs, or the generations of thousands of vipd's own transactions.
const eventRoom = 1 << 20

// eventPatience is how long to wait until the kernel reports a transaction that has taken effect.
const eventPatience = time.Second

// events processes the kernel's reports of transactions. A report consists of each change with its
// table, followed by the generation.
type events struct {
	sock       *nlsock.Socket
	generation uint32
	// touched counts the changes by other programs in each table. lost counts how often events were
	// lost.
	touched map[Table]uint64
	lost    uint64
}

// Listen subscribes to the kernel's events about transactions, which Foreign uses. Without the
// necessary privilege, Foreign works without events.
func (c *Conn) Listen() error {
	sock, err := listen(eventRoom)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	e := &events{sock: sock, touched: map[Table]uint64{}}
	if e.generation, err = c.Generation(); err != nil { // earlier transactions are not reported
		_ = sock.Close()
		return fmt.Errorf("listening for nf_tables events: %w", err)
	}
	c.events = e
	return nil
}

// listen opens a socket for events about transactions, with a buffer of room bytes.
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

// Foreign returns the number of other programs' changes to a table, up to a generation (transaction
// number). Lost events count as a change. Without Listen, it counts every transaction that this
// connection did not make.
func (c *Conn) Foreign(t Table, upTo uint32) uint64 {
	if c.events == nil {
		return uint64(upTo - c.commits)
	}
	c.events.readUntil(upTo)
	return c.events.touched[t] + c.events.lost
}

// readUntil reads events up to a generation. It may have to wait, because the kernel reports a
// transaction shortly after the transaction takes effect.
func (e *events) readUntil(upTo uint32) {
	for int32(upTo-e.generation) > 0 { // generations may wrap around
		m, err := e.sock.Within(eventPatience)
		if err != nil {
			e.lost++
			e.generation = upTo
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
				e.newGeneration(number(a.Value))
			case kind != msgNewGen && a.Kind == eventTable:
				e.touched[Table{family, text(a.Value)}]++
			}
		}
	}
}

// newGeneration processes the report about a generation. A report may arrive after readUntil has
// stopped waiting. A skipped generation means that a report was lost.
func (e *events) newGeneration(generation uint32) {
	ahead := int32(generation - e.generation)
	if ahead > 1 {
		e.lost++
	}
	if ahead > 0 {
		e.generation = generation
	}
}

// deletedRoom is the size of the buffer for events about another program's transaction, in bytes.
// It holds about 20,000 deleted and added rules.
const deletedRoom = 64 << 20

// DeletedRules calls the function "during". Then, for each rule that was deleted from the table
// during that call, it calls the function "rule" with the rule's chain and attributes. The kernel
// reads a rule's counters when packets no longer reach the rule. If the events exceed deletedRoom,
// rules may be missing.
func DeletedRules(x Table, during func(), rule func(chain string, attrs []byte)) error {
	sock, err := listen(deletedRoom)
	if err != nil {
		during()
		return err
	}
	during()
	sock.Drain() // the kernel reports a transaction before it answers the other program
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
