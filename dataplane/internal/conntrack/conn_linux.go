package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// Conn is a connection to a network namespace's connection tracking. It is safe for concurrent use.
// At most one list and one deletion are in progress at a time, but a deletion does not wait for a
// list.
type Conn struct {
	listing sync.Mutex // guards lists and its unread answers
	lists   *nlsock.Socket

	deleting sync.Mutex // guards deletes and request
	deletes  *nlsock.Socket
	request  writer
}

// Open opens a connection to the calling thread's network namespace.
func Open() (*Conn, error) {
	lists, err := nlsock.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	deletes, err := nlsock.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, errors.Join(err, lists.Close())
	}
	return &Conn{lists: lists, deletes: deletes}, nil
}

// Close closes the connection. Pending calls fail.
func (c *Conn) Close() error { return errors.Join(c.lists.Close(), c.deletes.Close()) }

// Each calls visit for every flow that matches the filter. The flow is valid until visit returns,
// but visit may copy it. Flows that start or end during the call may be missed. If there are many
// such flows, other flows may be visited twice. If visit returns an error or ctx is canceled, Each
// stops and returns the error. visit must not call Each or Cut.
func (c *Conn) Each(ctx context.Context, f Filter, visit func(*Flow) error) error {
	return c.list(ctx, f.selection(), func(flow *Flow) error {
		if !f.matches(flow) {
			return nil
		}
		return visit(flow)
	})
}

// attempts is the maximum number of times that a list is requested while the kernel reports it as
// incomplete.
const attempts = 5

// errDisturbed means that the kernel reported every list as incomplete.
var errDisturbed = errors.New("the table kept changing while vipd read it")

// list calls visit for every flow that the kernel finds. Kernels before Linux 5.8 can't search by
// most criteria and refuse the request. In this case list calls visit for all flows of the family.
func (c *Conn) list(ctx context.Context, s selection, visit func(*Flow) error) error {
	c.listing.Lock()
	defer c.listing.Unlock()
	for range attempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		l := listing{ctx: ctx, visit: visit}
		err := l.run(c.lists, s)
		switch {
		case (s.flags != 0 || s.unreplied) && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
			s = selection{family: s.family}
		case errors.Is(err, unix.EBUSY): // this attempt has read what was left of an earlier, interrupted list
		case err != nil:
			return fmt.Errorf("listing conntrack's flows: %w", err)
		case l.stop != nil:
			return l.stop
		case !l.disturbed:
			return nil
		}
	}
	return fmt.Errorf("listing conntrack's flows: %w", errDisturbed)
}

// listing is one attempt to list flows.
type listing struct {
	ctx       context.Context
	visit     func(*Flow) error
	flow      Flow
	stop      error // the reason why no more flows are visited
	disturbed bool  // the kernel reported that the list may be incomplete
}

// run lists the flows in a selection, and returns the kernel's error. It always reads the whole
// list, even if it no longer visits flows, because the kernel would otherwise refuse the next list
// with EBUSY.
func (l *listing) run(s *nlsock.Socket, what selection) error {
	var w writer
	seq := s.Next()
	w.list(what, seq)
	if err := s.Send(w.B); err != nil {
		return err
	}
	var busy error // EBUSY if an earlier list was not read to its end
	for {
		m, err := s.Answer()
		if err != nil {
			return err
		}
		if l.stop == nil {
			l.stop = l.ctx.Err()
		}
		for m.Next() {
			l.disturbed = l.disturbed || m.Seq == seq && m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch end := m.Kind == unix.NLMSG_ERROR || m.Kind == unix.NLMSG_DONE; {
			case m.Seq != seq && m.Kind == unix.NLMSG_DONE && busy != nil:
				return busy
			case m.Seq != seq: // an answer to the earlier list
			case end && errors.Is(m.Refusal(), unix.EBUSY):
				busy = m.Refusal()
			case end:
				return m.Refusal()
			case m.Kind == messageNew:
				l.read(m.Body)
			}
		}
		if m.Err != nil {
			return m.Err
		}
	}
}

func (l *listing) read(body []byte) {
	if l.stop != nil {
		return
	}
	ours, err := l.flow.read(body)
	if err == nil && ours {
		err = l.visit(&l.flow)
	}
	l.stop = err
}

// count returns the number of flows, including flows that a list does not contain yet. The kernel
// maintains this count.
func (c *Conn) count() (uint64, error) {
	c.deleting.Lock()
	defer c.deleting.Unlock()
	c.request.B = c.request.B[:0]
	seq := c.deletes.Next()
	c.request.begin(messageStats, 0, seq, unix.AF_UNSPEC)
	c.request.End()
	err := c.deletes.Send(c.request.B)
	for err == nil {
		var m nlsock.Messages
		for m, err = c.deletes.Answer(); err == nil && m.Next(); {
			if m.Seq != seq { // an answer to a deletion
				continue
			}
			if n, ok := entries(&m); ok {
				return n, nil
			}
			err = cmp.Or(m.Refusal(), nlsock.ErrMalformed)
		}
		err = cmp.Or(err, m.Err)
	}
	return 0, fmt.Errorf("counting conntrack's flows: %w", err)
}

func entries(m *nlsock.Messages) (n uint64, ok bool) {
	if m.Kind != messageStats || len(m.Body) < headerSize {
		return 0, false
	}
	for a := (attributes{nlsock.In(m.Body[headerSize:])}); a.Next(); {
		if a.Kind == ctaStatsEntries {
			n = a.number(4)
			return n, a.Err == nil
		}
	}
	return 0, false
}

// Forget deletes the flows with these protocols and original directions. A missing flow is not an
// error. If the kernel refuses to delete flows in a flowtable, Forget deletes all other flows, and
// then returns the first refusal.
func (c *Conn) Forget(flows []Flow) (busy error) {
	for part := range slices.Chunk(flows, batch) {
		if _, err := c.deleteAll(part); errors.Is(err, unix.EBUSY) {
			busy = cmp.Or(busy, err)
		} else if err != nil {
			return err
		}
	}
	return busy
}

// deleteAll deletes at most batch flows, and returns the number of flows that existed. It does not
// delete a later flow with the same addresses. The kernel reports only errors and the result of the
// last request. Older kernels refuse to delete flows in a flowtable (EBUSY). deleteAll then deletes
// all other flows, and returns the first refusal.
func (c *Conn) deleteAll(flows []Flow) (deleted int, busy error) {
	c.deleting.Lock()
	defer c.deleting.Unlock()
	c.request.B = c.request.B[:0]
	var last uint32
	for i := range flows {
		last = c.deletes.Next()
		c.request.delete(&flows[i], last)
	}
	c.request.Ask()
	first := last - uint32(len(flows)) + 1
	err := c.deletes.Send(c.request.B)
	var refusals []error
	if err == nil {
		refusals, err = c.deletes.Refusals(first, last)
	}
	if err != nil {
		return 0, fmt.Errorf("deleting conntrack's flows: %w", err)
	}
	deleted = len(flows)
	for i, err := range refusals {
		if err == nil {
			continue
		}
		deleted--
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		err = fmt.Errorf("deleting conntrack's flow from %s to %s: %w", flows[i].Client(), flows[i].Frontend(), err)
		if !errors.Is(err, unix.EBUSY) {
			return 0, err
		}
		busy = cmp.Or(busy, err)
	}
	return deleted, busy
}
