package userspace

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vipd/balancer/lib/sockerr"
)

// errPaused means that a connection stands still, to be handed over to another process.
var errPaused = errors.New("the connection is paused")

func newRelaying(client, server *net.TCPConn, t *traffic, p *pipes) *relaying {
	r := &relaying{traffic: t}
	r.in = pump{src: client, dst: server, count: &t.in, sum: &t.counter.in, pipes: p, paused: &t.paused}
	r.out = pump{src: server, dst: client, count: &t.out, sum: &t.counter.out, pipes: p, paused: &t.paused}
	return r
}

// relay carries bytes both ways until both directions have ended, and counts them in its traffic. It is the one place that
// moves bytes: an event loop could take its place.
//
// The end of one direction is passed on, and the other goes on. It returns nil when both ended in order. Otherwise (a
// reset, a deadline in the past, set to cut the connection) both stop and it returns the first cause; what
// to do with the connections is up to the caller, who closes them in any case. What a side had sent before it was reset still
// reaches the other one: an answer to a request that it did not read to the end. Where such a deadline was set to pause the
// connection, it returns errPaused, and the pumps know what they have read and not written: relay may be called again.
func (r *relaying) relay() error {
	r.other.Go(func() { r.run(&r.out) })
	r.run(&r.in)
	r.other.Wait()
	if r.err == nil && r.paused.Load() && !(r.in.ended && r.out.ended) {
		return errPaused
	}
	return r.err
}

// relaying is one connection in a relay.
type relaying struct {
	*traffic
	in, out pump
	other   sync.WaitGroup
	once    sync.Once
	err     error // the first cause
}

// run moves one direction to its end, and passes that on.
func (r *relaying) run(p *pump) {
	if p.ended { // before the connection was paused
		return
	}
	err := p.run()
	if err == nil {
		p.ended = true
		if !r.half.Swap(true) { // the last end needs no CloseWrite: the caller closes both
			err = p.passEnd()
		}
	}
	if err == nil || sockerr.Is(err, syscall.ENOTCONN) { // the latter: dst is gone, and its own direction tells how
		return
	}
	if p.isPaused(err) {
		return
	}
	r.once.Do(func() { r.err = err })
	until := longAgo // wakes the other direction
	if p.lost {
		until = time.Now().Add(lastWords)
	}
	_ = p.src.SetDeadline(until) // both fail only where it is closed already
	_ = p.dst.SetDeadline(until)
}

// lastWords is how long what a side sent before it was reset may take to the other one.
const lastWords = 5 * time.Second

// passEnd passes on the end of a direction whose source may still take data. Where that was reset, of which the other direction was
// told, it is none.
func (p *pump) passEnd() error {
	if sockerr.Is(p.src.CloseRead(), syscall.ENOTCONN) {
		return syscall.ECONNRESET
	}
	return p.dst.CloseWrite()
}

// pump is one direction.
type pump struct {
	src, dst   *net.TCPConn
	count, sum *atomic.Uint64
	pipes      *pipes
	paused     *atomic.Bool
	ended      bool // in order, and that was passed on
	lost       bool // dst was reset, which only the other direction may still read from
	mover
}

// isPaused reports whether an error is that of a deadline which pauses the connection.
func (p *pump) isPaused(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && p.paused.Load()
}

// wrote notes what a write came to.
func (p *pump) wrote(n int, err error) {
	p.count.Add(uint64(n))
	p.sum.Add(uint64(n))
	p.lost = err != nil && sockerr.Is(err, syscall.EPIPE, syscall.ECONNRESET)
}
