package userspace

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is the capacity of a pipe in bytes. With a quarter of it, moving a gigabyte needs 50
	// % more CPU time. Unprivileged users may have 64 MiB of pipes (pipe-user-pages-soft); the
	// kernel refuses more of this size.
	pipeSize = 1 << 20
	// sparePipes is the number of unused pipes that stay open. Opening a pipe costs as much as
	// moving 64 kB.
	sparePipes = 4
	// pipePause is the pause in opening pipes after the kernel refused one.
	pipePause = time.Second
)

// pipesFor returns the maximum number of open pipes with this budget of descriptors and this much
// memory. Full pipes use at most an eighth of the descriptors, and a 32nd of the memory.
func pipesFor(limit int, memory uint64) int { return int(min(uint64(limit)/16, memory/32/pipeSize)) }

// memory returns the host's memory in bytes.
func memory() uint64 {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0 // never happens
	}
	return uint64(i.Totalram) * uint64(i.Unit)
}

// pipe holds bytes of one direction of a connection between two sockets.
type pipe struct{ r, w int }

// pipes are the pipes of all connections. A pump takes a pipe when there are bytes to move, and
// returns it when they were moved, so idle connections have none. Without a pipe, pumps copy.
type pipes struct {
	budget *budget

	mu    sync.Mutex
	most  int
	open  int
	free  []pipe    // the last one used is the next one taken
	pause time.Time // no pipe is opened until then
}

func newPipes(b *budget) *pipes { return &pipes{budget: b, most: pipesFor(int(b.limit), memory())} }

// take returns an empty pipe, or false if none is available now.
func (p *pipes) take() (pipe, bool) {
	p.mu.Lock()
	if last := len(p.free) - 1; last >= 0 {
		t := p.free[last]
		p.free = p.free[:last]
		p.mu.Unlock()
		return t, true
	}
	may := p.open < p.most && p.budget.room(2+p.budget.flows) && !time.Now().Before(p.pause)
	if may {
		p.open++
		p.budget.take(2)
	}
	p.mu.Unlock()
	if !may {
		return pipe{}, false
	}
	t, err := openPipe()
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open--
		p.budget.give(2)
		p.pause = time.Now().Add(pipePause)
	}
	return t, err == nil
}

// put returns an empty pipe.
func (p *pipes) put(t pipe) {
	p.mu.Lock()
	spare := len(p.free) < min(sparePipes, p.most)
	if spare {
		p.free = append(p.free, t)
	}
	p.mu.Unlock()
	if !spare {
		p.discard(t)
	}
}

// discard closes a pipe with its content.
func (p *pipes) discard(t pipe) {
	t.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.budget.give(2)
}

// close closes the spare pipes after the last connection.
func (p *pipes) close() {
	for _, t := range p.free {
		p.discard(t)
	}
	p.free = nil
}

// add counts a pipe that another process has opened.
func (p *pipes) add() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open++
	p.budget.take(2)
}

// openPipe returns a pipe of pipeSize, or an error.
func openPipe() (pipe, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, err
	}
	t := pipe{ends[0], ends[1]}
	if _, err := unix.FcntlInt(uintptr(t.w), unix.F_SETPIPE_SZ, pipeSize); err != nil {
		t.close()
		return pipe{}, err
	}
	return t, nil
}

func (t pipe) close() {
	_ = unix.Close(t.r) // closing a pipe can't fail
	_ = unix.Close(t.w)
}

// splicing is the state of a pump that uses a pipe.
type splicing struct {
	pipe pipe
	held int // number of bytes in it; 0 means that the pump has no pipe
	err  error
}

// fill moves available bytes into a pipe, if one is available. It returns the same as read(2).
func (p *pump) fill(fd int) (int, error) {
	t, ok := p.pipes.take()
	if !ok {
		return 0, errNoPipe
	}
	for {
		n, err := unix.Splice(fd, nil, t.w, nil, bulk, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
			continue
		case n > 0:
			p.splicing.pipe, p.splicing.held = t, int(n)
		default:
			p.pipes.put(t)
		}
		return int(n), err
	}
}

// drain moves the pipe's content to the destination, waiting if necessary, and returns the pipe.
func (p *pump) drain() error {
	dst, err := p.dst.SyscallConn()
	if err == nil {
		err = dst.Write(p.pour)
	}
	if err == nil {
		err = p.splicing.err
	}
	if p.isPaused(err) {
		return err // the pipe is handed over with the connection
	}
	if err == nil {
		p.pipes.put(p.splicing.pipe)
	} else {
		p.pipes.discard(p.splicing.pipe)
	}
	p.splicing.held = 0
	return err
}

// pour moves as much as the destination accepts now. It returns true if nothing is left to move, or
// after a failure.
func (p *pump) pour(fd uintptr) bool {
	s := &p.splicing
	for s.held > 0 {
		n, err := unix.Splice(s.pipe.r, nil, int(fd), nil, s.held, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EAGAIN:
			return false
		case err == unix.EINTR:
		case err != nil:
			s.err = err
			p.wrote(0, err)
			return true
		default:
			s.held -= int(n)
			p.wrote(int(n), nil)
		}
	}
	return true
}
