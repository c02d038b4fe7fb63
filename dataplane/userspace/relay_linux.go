package userspace

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"syscall"
)

const (
	// small is the size of reads while traffic comes in messages. Most messages are shorter. A full
	// read counts as bulk data.
	small = 16 << 10
	// bulk is the maximum size of moves of bulk through a pipe.
	bulk = 1 << 20
	// large is the size of reads of bulk without a pipe.
	large = 64 << 10
)

// Buffers are used only between a read and the following write, so idle connections have none.
var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, small); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, large); return &b }}
)

// errNoPipe is the reason why a pump copies bulk.
var errNoPipe = errors.New("there is no pipe to be had")

// mover is the state of a pump between the calls of step.
type mover struct {
	err      error  // io.EOF means the end, in order
	bulk     bool   // the last read filled the buffer
	pending  []byte // read, but not written before the connection was paused
	splicing splicing
}

// run moves bytes until the end, which is nil, or a failure. It copies messages through a buffer,
// because splice needs two more system calls for each, which cost more than copying a little. On
// Linux, bulk goes through a pipe.
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

// resume writes the bytes that were read before the connection was paused.
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

// step moves the available bytes. It returns true if the caller must act: at the end, after a
// failure, or if a pipe holds bytes. It returns false if nothing is available now.
func (p *pump) step(fd uintptr) bool {
	for {
		buffers, end := &smallBuffers, io.EOF
		if p.bulk {
			n, err := p.fill(int(fd))
			if n > 0 {
				return true
			}
			// Otherwise reading shows the state. EAGAIN means no data, or an urgent byte, which
			// splice never passes.
			if err != syscall.EAGAIN {
				buffers = &largeBuffers // usually because there is no pipe
				if err != nil && err != errNoPipe {
					end = err // the kernel reports a reset once; the next read returns an end
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

// copy reads once, and writes the result.
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
