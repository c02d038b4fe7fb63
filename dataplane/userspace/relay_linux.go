package userspace

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"syscall"
)

const (
	// small is how much is read at once while traffic comes in messages. Most fit; what fills it is taken for bulk.
	small = 16 << 10
	// bulk is how much is then moved at once, at most, through a pipe.
	bulk = 1 << 20
	// large is how much is read at once of bulk where there is no pipe.
	large = 64 << 10
)

// buffers are in use only between a read and the write of what it got: waiting connections have none.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, small); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, large); return &b }}
)

// errNoPipe is why a pump copies bulk, too.
var errNoPipe = errors.New("there is no pipe to be had")

// mover is what a pump remembers between the calls of step.
type mover struct {
	err      error  // io.EOF: the end, in order
	bulk     bool   // the last read filled the buffer
	pending  []byte // was read, and could not be written before the connection was paused
	splicing splicing
}

// run moves bytes until the end, which is nil, or a failure. Messages are read and written through a buffer: splice
// would cost two more system calls for each, which weigh more than copying a little. Bulk goes through a pipe, on Linux.
func (p *pump) run() error {
	raw, err := p.src.SyscallConn()
	if err == nil {
		err = p.resume()
	}
	if err != nil {
		return err
	}
	step := p.step
	for {
		if err := raw.Read(step); err != nil {
			return err
		}
		switch p.err {
		case nil:
		case io.EOF:
			return nil
		default:
			return p.err
		}
		if n := p.splicing.held; n > 0 {
			if err := p.drain(); err != nil {
				return err
			}
			p.bulk = n >= small
		}
	}
}

// resume writes what was read before the connection was paused.
func (p *pump) resume() error {
	p.err = nil
	if len(p.pending) > 0 {
		n, err := p.dst.Write(p.pending)
		p.wrote(n, err)
		p.pending = p.pending[n:]
		if err != nil {
			return err
		}
	}
	if p.splicing.held > 0 {
		return p.drain()
	}
	return nil
}

// step moves what there is to read, and returns true when there is something to look at: the end, a failure, or bytes in
// a pipe. False: there is nothing now, call again.
func (p *pump) step(fd uintptr) bool {
	for {
		buffers, end := &smallBuffers, io.EOF
		if p.bulk {
			n, err := p.fill(int(fd))
			if n > 0 {
				return true
			}
			// Otherwise reading tells what there is. EAGAIN is nothing, or an urgent byte, which splice never passes.
			if err != syscall.EAGAIN {
				buffers = &largeBuffers // there is no pipe, most often
				if err != nil && err != errNoPipe {
					end = err // the kernel tells of a reset once: reading finds an end then
				}
			}
		}
		n, err := p.copy(fd, buffers)
		switch {
		case err == syscall.EAGAIN:
			return false
		case err == nil && n == 0:
			err = end
		}
		if p.err = err; err != nil {
			return true
		}
		p.bulk = n >= small
	}
}

// copy reads once, and writes what it got.
func (p *pump) copy(fd uintptr, buffers *sync.Pool) (n int, err error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err = syscall.Read(int(fd), *buf)
		if err != syscall.EINTR {
			break
		}
	}
	if n <= 0 || err != nil {
		return 0, err
	}
	written, err := p.dst.Write((*buf)[:n])
	p.wrote(written, err)
	if p.isPaused(err) {
		p.pending = bytes.Clone((*buf)[written:n])
	}
	return n, err
}
