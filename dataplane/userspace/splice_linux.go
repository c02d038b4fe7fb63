package userspace

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is the capacity of a pipe in bytes. A quarter of this size would need 50 % more CPU
	// time to move a gigabyte. The kernel refuses this size to unprivileged users with more than 64
	// MiB of pipes (pipe-user-pages-soft).
	pipeSize = 1 << 20
	// sparePipes is the number of unused pipes that a loop keeps open. Opening a pipe costs as much
	// as moving 64 kB.
	sparePipes = 4
	// pipePause is how long no pipe is opened after the kernel has refused one.
	pipePause = time.Second
)

// pipesFor returns the maximum number of open pipes for a file descriptor limit and an amount of
// memory. Full pipes use at most an eighth of the descriptors, and a 32nd of the memory.
func pipesFor(limit int, memory uint64) int { return int(min(uint64(limit)/16, memory/32/pipeSize)) }

// memory returns the host's memory in bytes.
func memory() uint64 {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return 0 // Sysinfo never fails
	}
	return uint64(i.Totalram) * uint64(i.Unit)
}

// pipe holds bytes on their way between two sockets, in one direction of a connection.
type pipe struct{ r, w int }

// pipes counts the pipes of all loops. A side has a pipe only while it has bytes to move, so idle
// connections have none. If no pipe is available, the loop copies the bytes.
type pipes struct {
	budget *budget
	max    int
	open   atomic.Int64
	pause  atomic.Int64 // no pipe is opened until this time (Unix nanoseconds)
}

func newPipes(b *budget) *pipes { return &pipes{budget: b, max: pipesFor(int(b.limit), memory())} }

// take opens a pipe. It returns false if none is available now.
func (p *pipes) take() (pipe, bool) {
	if !p.budget.room(2+p.budget.flows) || time.Now().UnixNano() < p.pause.Load() {
		return pipe{}, false
	}
	if p.open.Add(1) > int64(p.max) {
		p.open.Add(-1)
		return pipe{}, false
	}
	t, err := openPipe()
	if err != nil {
		p.open.Add(-1)
		p.pause.Store(time.Now().Add(pipePause).UnixNano())
		return pipe{}, false
	}
	p.budget.take(2)
	return t, true
}

// discard closes a pipe. Its content is lost.
func (p *pipes) discard(t pipe) {
	t.close()
	p.open.Add(-1)
	p.budget.give(2)
}

// add counts a pipe that was opened by another process.
func (p *pipes) add() {
	p.open.Add(1)
	p.budget.take(2)
}

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
	rawClose(t.r)
	rawClose(t.w)
}

// takePipe returns an empty pipe. It returns false if none is available now.
func (l *loop) takePipe() (pipe, bool) {
	if last := len(l.spare) - 1; last >= 0 {
		t := l.spare[last]
		l.spare = l.spare[:last]
		return t, true
	}
	return l.d.loops.pipes.take()
}

func (l *loop) returnPipe(t pipe) {
	if len(l.spare) < sparePipes {
		l.spare = append(l.spare, t)
	} else {
		l.d.loops.pipes.discard(t)
	}
}

// spliceFrom moves a side's available bytes into a pipe for the other side, and returns their
// number. If there are none, the next copyFrom detects the reason: no data, an urgent byte (which
// splice never passes), or the end of the data.
func (l *loop) spliceFrom(c *conn, i int) int {
	t, ok := l.takePipe()
	if !ok {
		return l.copyFrom(c, i)
	}
	n, errno := rawSplice(c.sides[i].fd, t.w, pipeSize)
	c.sides[i].bulk = errno == 0 && n >= small
	if errno == 0 && n > 0 {
		to := &c.sides[1-i]
		to.pipe, to.held = t, n
		return n
	}
	l.returnPipe(t)
	if errno != 0 && errno != unix.EAGAIN && errno != unix.EINVAL { // the kernel reports a reset only once, and a later read would see a normal end
		l.handleReset(c, i)
		c.sides[i].ended = true
	}
	return 0
}
