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

// Conn talks to the connection tracking of one network namespace. It is safe for several goroutines: lists wait for each
// other, and so do deletions, but these go on during a list.
type Conn struct {
	listing sync.Mutex // guards lists, and what the kernel is still to send there
	lists   *nlsock.Socket

	deleting sync.Mutex // guards deletes and request
	deletes  *nlsock.Socket
	request  writer
}

// Open opens a connection to that of the calling thread's network namespace.
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

// Close closes the connection. Calls that are under way fail.
func (c *Conn) Close() error { return errors.Join(c.lists.Close(), c.deletes.Close()) }

// Each calls visit for every flow that the filter finds. The flow is visit's until it returns; a copy may be kept. Flows
// that come and go meanwhile may be found or not, and while many do, one may be found twice. What visit returns ends it,
// and is returned; so is the end of ctx. visit may call neither Each nor Cut.
func (c *Conn) Each(ctx context.Context, f Filter, visit func(*Flow) error) error {
	return c.list(ctx, f.selection(), func(flow *Flow) error {
		if !f.matches(flow) {
			return nil
		}
		return visit(flow)
	})
}

// attempts bounds how often a list is asked for that the kernel could not give in one piece.
const attempts = 5

// errDisturbed: the kernel said each time that what it sent may not be all.
var errDisturbed = errors.New("the table changed too much to be read")

// list calls visit for every flow that the kernel finds. Where it refuses to search, as before Linux 5.8 and for what is
// newer than it, these are all of the family.
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
		case errors.Is(err, unix.EBUSY): // a list was left halfway, by a visit that never returned, and is read by now
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

// listing is one attempt to list.
type listing struct {
	ctx       context.Context
	visit     func(*Flow) error
	flow      Flow
	stop      error // why nothing more is visited
	disturbed bool  // the kernel says that what it sent may not be all
}

// run returns what the kernel has against it. Where visiting stops, the rest is read all the same: the kernel makes no
// other list before.
func (l *listing) run(s *nlsock.Socket, what selection) error {
	var w writer
	seq := s.Next()
	w.list(what, seq)
	if err := s.Send(w.B); err != nil {
		return err
	}
	var busy error // with a list that was left halfway, whose rest is still to come
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
			case m.Seq != seq: // of that list
			case end && errors.Is(m.Refusal(), unix.EBUSY):
				busy = m.Refusal()
			case end:
				return m.Refusal()
			case m.Kind == messageNew:
				l.take(m.Body)
			}
		}
		if m.Err != nil {
			return m.Err
		}
	}
}

func (l *listing) take(body []byte) {
	if l.stop != nil {
		return
	}
	ours, err := l.flow.read(body)
	if err == nil && ours {
		err = l.visit(&l.flow)
	}
	l.stop = err
}

// count is how many flows there are, with those that a list does not show yet. The kernel keeps count: it walks nothing.
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
			if m.Seq != seq { // of deletions
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

// Forget deletes the flows of these protocols and original directions. Absent flows are no error.
func (c *Conn) Forget(flows []Flow) error {
	for part := range slices.Chunk(flows, batch) {
		if _, err := c.deleteAll(part); err != nil {
			return err
		}
	}
	return nil
}

// deleteAll makes the kernel forget flows, at most batch of them, but no others of the same addresses that took their
// place, and says how many were there. Only errors are answered, and the last.
func (c *Conn) deleteAll(flows []Flow) (int, error) {
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
	deleted := len(flows)
	for i, err := range refusals {
		switch {
		case errors.Is(err, unix.ENOENT):
			deleted--
		case err != nil:
			return 0, fmt.Errorf("deleting conntrack's flow of %s to %s: %w", flows[i].Client(), flows[i].Frontend(), err)
		}
	}
	return deleted, nil
}
