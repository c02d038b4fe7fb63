package userspace

import (
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// loop moves the bytes of connections. It runs in its own thread, which alone uses its connections'
// sockets. It waits only for events. If another goroutine holds a frontend's lock, the connection
// continues at a later turn of the loop.
type loop struct {
	d      *Dataplane
	number int
	poller poller
	table  table
	mail   mailbox
	wheel  wheel
	buffer [small]byte // data between a read and the following write
	spare  []pipe      // empty pipes
	meter  meter
	spill  spill
	backlog
	intake
	quit    bool
	running sync.WaitGroup
}

// backlog is the work that a loop has postponed to its next turn.
type backlog struct {
	hungry []readySide // sides that have used up their quota for this turn
	busy   []*conn     // connections whose frontend was locked, or whose dial has failed
	hurry  bool        // the next turn must start immediately
}

type readySide struct {
	c    *conn
	side int
}

// retryPause is how long the loop waits before it tries a busy lock again.
const retryPause = time.Millisecond

func newLoop(d *Dataplane, number int) (*loop, error) {
	l := &loop{d: d, number: number}
	if err := l.poller.open(); err != nil {
		return nil, fmt.Errorf("opening a relay loop: %w", err)
	}
	l.wheel.init(ticksIn(time.Duration(d.now())))
	return l, nil
}

// run handles events until a letter sets quit. It may be called again afterwards.
func (l *loop) run() {
	runtime.LockOSThread() // never unlocked, so the thread with its slice exits with the goroutine
	shortenSlice()
	for l.quit = false; !l.quit || len(l.busy) > 0; {
		n := l.wait()
		l.wheel.advance(l.meter.woke/int64(tick), l.expired)
		for i := range n {
			l.dispatch(&l.poller.events[i])
		}
		l.feed()
		l.mail.read(l)
		l.retry()
		l.resume()
	}
	l.meter.rest()
}

// wait waits for events or the next timer, and returns the number of events.
func (l *loop) wait() int {
	timeout := time.Duration(-1)
	switch {
	case len(l.hungry) > 0, l.hurry:
		timeout = 0
	case len(l.busy)+len(l.orphans) > 0:
		timeout = retryPause
	case len(l.paused) > 0:
		timeout = tick
	case l.meter.load.Load() > 0: // the load of an idle period is not known yet
		timeout = tick
	case l.wheel.count > 0:
		timeout = time.Duration(l.wheel.idle()) * tick
	}
	l.hurry = false
	l.meter.sleep(l.d.now())
	n := l.poller.wait(timeout)
	if l.meter.wake(l.d.now()) {
		l.balance()
	}
	return n
}

func (l *loop) dispatch(e *unix.EpollEvent) {
	switch id := eventID(e); {
	case id == bellID:
		l.poller.drainWake()
	case id.isListener():
		if ln := l.d.loops.listener(id); ln != nil {
			l.accept(ln)
		}
	default:
		if c := l.table.find(id); c != nil {
			l.event(c, id.side(), e.Events)
			l.note(c)
		}
	}
}

// feed gives another turn to the sides that have used up their quota.
func (l *loop) feed() {
	todo := l.hungry
	l.hungry = nil
	for _, h := range todo {
		if h.c.sides[h.side].queued && h.c.phase == relaying {
			h.c.sides[h.side].queued = false
			l.event(h.c, h.side, 0)
		}
	}
}

// retry continues the connections in busy, and admits the waiting orphans.
func (l *loop) retry() {
	todo := l.busy
	l.busy = nil
	for _, c := range todo {
		l.proceed(c)
	}
	l.adoptOrphans()
}

// contain ends a connection whose code panicked. Other connections continue.
func (l *loop) contain(c *conn) {
	cause := recover()
	if cause == nil {
		return
	}
	l.logPanic(cause, c.f, c.from)
	if c.phase < leaving {
		l.end(c, errLost)
	}
}

// containClient resets a client whose code panicked before its connection started.
func (l *loop) containClient(f *frontend, fd int, from netip.AddrPort) {
	if cause := recover(); cause != nil {
		l.logPanic(cause, f, from)
		l.turnAway(fd)
	}
}

// logPanic logs a panic in the code that serves a client. If the frontend is unknown, f is nil.
func (l *loop) logPanic(cause any, f *frontend, client netip.AddrPort) {
	stack, frontend := string(debug.Stack()), "unknown"
	if f != nil {
		frontend = f.key.String()
	}
	l.d.aside.do(func() {
		l.d.log.Error("a bug in vipd has ended a connection", "frontend", frontend, "client", client, "panic", cause, "stack", stack)
	})
}

// mailbox holds the letters to a loop. Sending and reading letters never block.
type mailbox struct{ last atomic.Pointer[letter] }

// letter is a request to a loop.
type letter struct {
	before *letter
	read   func(*loop)
}

// send makes the loop call the function read at its next turn. It may be called concurrently.
func (l *loop) send(read func(*loop)) {
	for {
		before := l.mail.last.Load()
		if !l.mail.last.CompareAndSwap(before, &letter{before, read}) {
			continue
		}
		if before == nil { // otherwise the loop has not read the earlier letters yet
			l.poller.wake()
		}
		return
	}
}

// read handles the letters in the order in which they were sent.
func (m *mailbox) read(l *loop) {
	var first *letter
	for n := m.last.Swap(nil); n != nil; {
		n.before, n, first = first, n.before, n
	}
	for n := first; n != nil; n = n.before {
		n.read(l)
	}
}

// poller is an epoll instance with an eventfd, the bell.
type poller struct {
	epoll, bell int
	events      [256]unix.EpollEvent
}

func (p *poller) open() (err error) {
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if p.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = p.add(p.bell, unix.EPOLLIN, bellID)
	} else {
		_ = unix.Close(p.epoll)
	}
	return err
}

func (p *poller) close() {
	_ = unix.Close(p.bell)
	_ = unix.Close(p.epoll)
}

// wake makes the current or next call to wait return.
func (p *poller) wake() {
	one := uint64(1)
	_, _ = raw(unix.SYS_WRITE, uintptr(p.bell), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one), 0, 0, 0)
}

func (p *poller) drainWake() {
	var n uint64
	_, _ = raw(unix.SYS_READ, uintptr(p.bell), uintptr(unsafe.Pointer(&n)), unsafe.Sizeof(n), 0, 0, 0)
}

// wait waits for events, and returns their number. A negative timeout means no timeout.
func (p *poller) wait(timeout time.Duration) int {
	ms := -1
	if timeout >= 0 {
		ms = int(timeout / time.Millisecond)
	}
	call := syscall.Syscall6
	if ms == 0 {
		call = syscall.RawSyscall6
	}
	n, _, errno := call(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events)), uintptr(len(p.events)), uintptr(ms), 0, 0)
	if errno != 0 {
		return 0 // interrupted
	}
	return int(n)
}

func (p *poller) add(fd int, events uint32, id id) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, events, id)
}

func (p *poller) remove(fd int) { _ = p.control(unix.EPOLL_CTL_DEL, fd, 0, 0) }

func (p *poller) control(op, fd int, events uint32, id id) error {
	e := unix.EpollEvent{Events: events, Fd: int32(uint64(id)), Pad: int32(uint64(id) >> 32)}
	if _, errno := raw(unix.SYS_EPOLL_CTL, uintptr(p.epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
