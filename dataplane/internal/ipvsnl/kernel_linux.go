package ipvsnl

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

// Client is the IPVS of the kernel, in the network namespace that the process runs in.
//
// A caller takes the one socket, and hands it to a goroutine that speaks with the kernel while the caller watches: a
// call into the kernel can't be interrupted, and may hang on its lock or on a module that it loads. When an answer does
// not come in time, that socket and goroutine are given up, and the next question goes over a new socket.
type Client struct {
	// turn holds the socket for the next caller; nil means it is to be opened first.
	turn chan *socket
	// done is closed by Close, once.
	done chan struct{}
	once sync.Once
	// open opens the socket.
	open func(context.Context) (*socket, error)
	// limit is the longest that one exchange of messages may take, however long the caller would wait.
	limit time.Duration
}

var _ Conn = (*Client)(nil)

// maxExchange is the limit of an exchange. Loading a scheduler's module is the longest of what may rightly take time.
const maxExchange = 10 * time.Second

func newKernel(open func(context.Context) (*socket, error), limit time.Duration) *Client {
	k := &Client{turn: make(chan *socket, 1), done: make(chan struct{}), open: open, limit: limit}
	k.turn <- nil
	return k
}

// Close ends the connection with the kernel, after the exchange that is going on.
func (k *Client) Close() (err error) {
	k.once.Do(func() {
		close(k.done)
		if s := <-k.turn; s != nil {
			err = s.Close()
		}
	})
	return err
}

// acquire waits for the socket.
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

// ask sends what write puts together and lets read have the answers, or returns ErrNoAnswer when that takes too long.
// What read changes besides its results must not be used then.
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
	if late || s.owing { // answers that are not waited for may come yet: not over a socket that is asked again
		s.abandon()
		k.turn <- nil
	} else {
		k.turn <- s
	}
	return answer, err
}

// watch runs do in a goroutine, and gives it up, late, when it lasts longer than ctx or limit.
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

// unloaded returns why IPVS can't answer when it was taken out of the kernel, and has the next question look for it again;
// nil means it is there. The kernel's number for this is the one for destinations and schedulers that are not.
func (k *Client) unloaded() (err error) {
	var s *socket
	select {
	case s = <-k.turn:
	default:
		return nil // who has the socket finds it out
	}
	if !loaded() {
		err = fmt.Errorf("%w: it was unloaded", ErrUnsupported)
	} else if f, lost := netlink.GenlFamilyGet("IPVS"); lost != nil {
		err = fmt.Errorf("%w: %w", ErrUnsupported, lost)
	} else if s != nil && f.ID != s.family {
		err = fmt.Errorf("%w: it was loaded anew", ErrNoAnswer)
	}
	if s != nil && err != nil {
		s.abandon()
		s = nil
	}
	k.turn <- s
	return err
}
