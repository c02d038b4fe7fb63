package ipvsnl

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

// Client is the connection to the kernel's IPVS in the process's network namespace.
//
// A caller acquires the single socket, and passes it to a goroutine that communicates with the
// kernel. It limits how long it waits for that goroutine, because a system call can't be
// interrupted, and may hang because of the kernel's lock or a module that the kernel loads. If an
// answer does not arrive in time, the socket and its goroutine are abandoned, and the next request
// uses a new socket.
type Client struct {
	// turn holds the socket for the next caller, or nil if the caller must open it.
	turn chan *socket
	// Close closes done, once.
	done chan struct{}
	once sync.Once
	// open opens the socket.
	open func(context.Context) (*socket, error)
	// limit is the maximum duration of an exchange, regardless of the caller's context.
	limit time.Duration
	marks marks
}

var _ Conn = (*Client)(nil)

// maxExchange is the maximum duration of an exchange (a request with its answers). Loading a
// scheduler's module is the slowest legitimate operation.
const maxExchange = 10 * time.Second

func newKernel(open func(context.Context) (*socket, error), limit time.Duration) *Client {
	k := &Client{turn: make(chan *socket, 1), done: make(chan struct{}), open: open, limit: limit}
	k.turn <- nil
	return k
}

// Close closes the connection after the current exchange.
func (k *Client) Close() (err error) {
	k.once.Do(func() {
		close(k.done)
		if s := <-k.turn; s != nil {
			err = s.Close()
		}
	})
	return err
}

// acquire waits until the socket is available, and opens it if necessary.
func (k *Client) acquire(ctx context.Context) (s *socket, err error) {
	select {
	case <-k.done:
		return nil, os.ErrClosed
	default:
	}
	select {
	case s = <-k.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-k.done:
		return nil, os.ErrClosed
	}
	if s == nil {
		if s, err = k.open(ctx); err != nil {
			k.turn <- nil
			return nil, err
		}
	}
	return s, nil
}

// ask sends the messages that the function write builds, and calls read to receive the answers. If
// this takes too long, it returns ErrNoAnswer while read may still be running. In this case, the
// caller must not use data that read modifies.
func ask[T any](ctx context.Context, k *Client, write func(*socket), read func(*socket) (T, error)) (T, error) {
	s, err := k.acquire(ctx)
	if err != nil {
		return *new(T), err
	}
	s.B = s.B[:0]
	write(s)
	answer, late, err := watch(ctx, k.limit, func() (T, error) {
		s.owing = true
		if err := s.Send(s.B); err != nil {
			return *new(T), err
		}
		return read(s)
	})
	if late || s.owing { // the next request must not receive late answers
		s.abandon()
		k.turn <- nil
	} else {
		k.turn <- s
	}
	return answer, err
}

// watch calls do in a goroutine. late reports whether ctx was done or limit had passed before do
// returned.
func watch[T any](ctx context.Context, limit time.Duration, do func() (T, error)) (answer T, late bool, err error) {
	type result struct {
		answer T
		err    error
	}
	results := make(chan result, 1)
	go func() {
		answer, err := do()
		results <- result{answer, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-results:
		return r.answer, false, r.err
	case <-ctx.Done():
		return answer, true, fmt.Errorf("%w: %w", ErrNoAnswer, ctx.Err())
	case <-timer.C:
		return answer, true, fmt.Errorf("%w within %s", ErrNoAnswer, limit)
	}
}

// unloaded checks whether IPVS was removed from the kernel. If so, it returns the reason, and makes
// the next request look for IPVS again. If IPVS is loaded, it returns nil. This check is necessary
// because the kernel uses the same error number for a missing destination or scheduler.
func (k *Client) unloaded() (err error) {
	var s *socket
	select {
	case s = <-k.turn:
	default:
		return nil // the next user of the socket gets the error
	}
	if !loaded() {
		err = fmt.Errorf("%w: it was unloaded", ErrUnsupported)
	} else if f, lost := netlink.GenlFamilyGet("IPVS"); lost != nil {
		err = fmt.Errorf("%w: %w", ErrUnsupported, lost)
	} else if s != nil && f.ID != s.family {
		err = fmt.Errorf("%w: IPVS was loaded again", ErrNoAnswer)
	}
	if s != nil && err != nil {
		s.abandon()
		s = nil
	}
	k.turn <- s
	return err
}
