//go:build unix

package userspace

import (
	"io"
	"sync"
	"syscall"
)

const (
	// small is how much is read at once while traffic comes in messages. Most fit; what fills it is taken for bulk.
	small = 16 << 10
	// bulk is how much is then moved at once, by the kernel where it can splice. The byte counts lag behind by as much.
	bulk = 1 << 20
)

// buffers are in use only between a read and the write of what it got: waiting connections have none.
var buffers = sync.Pool{New: func() any { return new([small]byte) }}

// mover is what a pump remembers between the calls of step.
type mover struct {
	err  error // io.EOF: the end, in order
	full bool  // the last read filled the buffer
}

// run moves bytes until the end, which is nil, or a failure. Messages are read and written through a buffer: splice
// would cost two more system calls for each, which weigh more than copying a little. Bulk is left to io.CopyN between bare
// connections, which splices on Linux.
func (p *pump) run() error {
	raw, err := p.src.SyscallConn()
	if err != nil {
		return err
	}
	step := p.step
	for {
		if err := raw.Read(step); err != nil {
			return err
		}
		if p.mover.err != nil {
			return ended(p.mover.err)
		}
		if p.mover.full {
			n, err := io.CopyN(p.dst, p.src, bulk)
			p.counted(int(n))
			if err != nil {
				return ended(err)
			}
		}
	}
}

func ended(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// step moves what there is to read, and returns true when there is something to look at: the end, a failure, or bulk.
// False: there is nothing now, call again.
func (p *pump) step(fd uintptr) bool {
	buf := buffers.Get().(*[small]byte)
	defer buffers.Put(buf)
	for {
		n, err := syscall.Read(int(fd), buf[:])
		switch {
		case n > 0:
			if _, err := p.dst.Write(buf[:n]); err != nil {
				p.mover.err = err
				return true
			}
			p.counted(n)
			p.mover.full = n == small
			if p.mover.full {
				return true
			}
		case err == syscall.EAGAIN:
			return false
		case err == syscall.EINTR:
		case err != nil:
			p.mover.err = err
			return true
		default:
			p.mover.err = io.EOF
			return true
		}
	}
}
