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

// errPaused means that a connection is paused for its handover to another process.
var errPaused = errors.New("the connection is paused")

func newRelaying(client, server *net.TCPConn, t *traffic, p *pipes) *relaying {
	r := &relaying{traffic: t}
	r.in = pump{src: client, dst: server, count: &t.in, sum: &t.counter.in, pipes: p, paused: &t.paused}
	r.out = pump{src: server, dst: client, count: &t.out, sum: &t.counter.out, pipes: p, paused: &t.paused}
	return r
}

// relay carries bytes both ways until both directions have ended, and counts them in its traffic.
// Only relay moves bytes.
//
// The end of one direction is forwarded, and the other direction continues. relay returns nil if
// both ended in order. After a failure (a reset, or a deadline in the past that cuts the
// connection) both stop, and it returns the first cause. The caller closes the connections. Data
// that a side had sent before its reset still reaches the other side, such as a response to a
// request that it did not read completely. If the deadline pauses the connection, relay returns
// errPaused, and the pumps keep the bytes that were read but not written: relay may be called
// again.
func (r *relaying) relay() error {
	r.other.Go(func() { r.run(&r.out) })
	r.run(&r.in)
	r.other.Wait()
	if r.err == nil && r.paused.Load() && !(r.in.ended && r.out.ended) {
		return errPaused
	}
	return r.err
}

// relaying is a connection in a relay.
type relaying struct {
	*traffic
	in, out pump
	other   sync.WaitGroup
	once    sync.Once
	err     error // the first cause
}

// run moves one direction to its end, and forwards the end.
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
	if err == nil || sockerr.Is(err, syscall.ENOTCONN) { // ENOTCONN: dst is closed, and its own direction knows the cause
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
	_ = p.src.SetDeadline(until) // both fail only if it is closed
	_ = p.dst.SetDeadline(until)
}

// lastWords limits the forwarding of data that a side sent before its reset.
const lastWords = 5 * time.Second

// passEnd forwards the end of a direction whose source can still receive data. If the source was
// reset, which the other direction reports, this is not an orderly end.
func (p *pump) passEnd() error {
	if sockerr.Is(p.src.CloseRead(), syscall.ENOTCONN) {
		return syscall.ECONNRESET
	}
	return p.dst.CloseWrite()
}

// pump moves bytes in one direction.
type pump struct {
	src, dst   *net.TCPConn
	count, sum *atomic.Uint64
	pipes      *pipes
	paused     *atomic.Bool
	ended      bool // in order, and forwarded
	lost       bool // dst was reset, and only the other direction may still read from it
	mover
}

// isPaused reports whether an error is caused by the deadline that pauses the connection.
func (p *pump) isPaused(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && p.paused.Load()
}

// wrote records the result of a write.
func (p *pump) wrote(n int, err error) {
	p.count.Add(uint64(n))
	p.sum.Add(uint64(n))
	p.lost = err != nil && sockerr.Is(err, syscall.EPIPE, syscall.ECONNRESET)
}
