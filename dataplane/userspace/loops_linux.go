package userspace

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// loops holds the loops of a dataplane. The first loop accepts all connections, and serves them
// while its load is low. The other loops help only while it is busy, because one loop needs less
// CPU time than two.
type loops struct {
	d     *Dataplane
	all   []*loop
	pipes *pipes
	// firstPort and lastPort are the bounds of the kernel's local port range.
	firstPort, lastPort int
	// listeners holds the listeners of the first loop by ID.
	listeners sync.Map
	// halting reports whether the loops are being halted. While it is true, connections must not
	// move between loops.
	halting atomic.Bool
	// stalled holds how long each loop has been stuck. refreshed is the time of the last refresh of
	// processors. Only the janitor uses both.
	stalled   []time.Duration
	refreshed int64
}

// processors raises GOMAXPROCS by the number of running loops in all dataplanes. Otherwise the
// loops would occupy all processors of Go's scheduler. As sysmon would find none free, it would
// wake every 20 us and move the processor of each waiting loop to another thread. This would cost
// about 15 % of the CPU time of small requests.
var processors extraProcessors

type extraProcessors struct {
	mu    sync.Mutex
	base  int // GOMAXPROCS without the added processors
	added int
	fixed bool // a test has chosen base
}

// change adds n processors, and returns GOMAXPROCS without the added processors.
func (p *extraProcessors) change(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.added == 0 {
		p.base = runtime.GOMAXPROCS(0)
	}
	if p.added += n; n != 0 {
		p.setLocked()
	}
	return p.base
}

// refresh makes GOMAXPROCS follow changed CPU limits of the host or container. Go itself does this
// only while there are no added processors.
func (p *extraProcessors) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setLocked()
}

func (p *extraProcessors) setLocked() {
	chosen, _ := strconv.Atoi(os.Getenv("GOMAXPROCS")) // as in Go, only a positive number counts
	if !p.fixed && chosen <= 0 {
		runtime.SetDefaultGOMAXPROCS()
		if p.base = runtime.GOMAXPROCS(0); p.added == 0 {
			return // Go itself follows changes again
		}
	}
	runtime.GOMAXPROCS(p.base + p.added)
}

// refreshInterval is the interval at which the janitor reads the CPU limits. Each time, the
// goroutines stop for an instant, as for a garbage collection.
const refreshInterval = time.Minute

// maxLoops is the maximum number of loops. Each has two descriptors of the reserve.
const maxLoops = 16

func newLoops(d *Dataplane) *loops {
	s := &loops{d: d, pipes: newPipes(d.budget)}
	s.firstPort, s.lastPort = localPortRange()
	return s
}

// mayChoose reports whether the kernel may choose port as the local port of a connection.
func (s *loops) mayChoose(port uint16) bool {
	return s.firstPort <= int(port) && int(port) <= s.lastPort
}

func (s *loops) start() error {
	for n := range min(processors.change(0), maxLoops) {
		l, err := newLoop(s.d, n)
		if err != nil {
			for _, l := range s.all {
				l.poller.close()
			}
			s.all = nil
			return err
		}
		s.all = append(s.all, l)
	}
	s.stalled = make([]time.Duration, len(s.all))
	s.resume()
	return nil
}

// resume starts the loops, for the first time or after halt.
func (s *loops) resume() {
	s.halting.Store(false)
	processors.change(len(s.all))
	for _, l := range s.all {
		l.running.Go(l.run)
	}
}

// halt stops the loops' goroutines between two events. Connections stay unchanged in their loops'
// tables.
func (s *loops) halt() {
	s.halting.Store(true)
	for _, l := range s.all {
		l.send(func(l *loop) { l.quit = true })
		l.running.Wait()
	}
	processors.change(-len(s.all))
	for _, l := range s.all { // a loop may have sent a connection just before halting was set
		l.mail.read(l)
	}
}

// close closes the loops. They must be halted, and must not have connections.
func (s *loops) close() {
	for _, l := range s.all {
		for l.mail.last.Load() != nil { // each letter resets a client that waited for the node's addresses
			l.mail.read(l)
		}
		for _, o := range l.orphans {
			l.turnAway(o.fd)
		}
		for _, t := range l.spare {
			s.pipes.discard(t)
		}
		l.poller.close()
	}
	s.all = nil
}

// add makes the first loop accept connections from ln.
func (s *loops) add(ln *listener) error {
	s.listeners.Store(ln.id(), ln)
	return s.all[0].poller.add(ln.fd, unix.EPOLLIN, ln.id())
}

// remove makes the first loop ignore events of ln. Closing the socket would not suffice, because
// another process may have a copy.
func (s *loops) remove(ln *listener) {
	s.all[0].poller.remove(ln.fd)
	s.listeners.Delete(ln.id())
}

// listener returns the listener with an ID, or nil if it was removed.
func (s *loops) listener(i id) *listener {
	ln, ok := s.listeners.Load(i)
	if !ok {
		return nil
	}
	return ln.(*listener)
}

// stallLimit is the time after which a stuck loop is reported.
const stallLimit = time.Second

// watch logs a loop that is stuck in a call, although no call should block. It also logs when the
// loop runs again, and refreshes processors.
func (s *loops) watch(now int64) {
	if len(s.all) > 0 && now-s.refreshed >= int64(refreshInterval) {
		processors.refresh()
		s.refreshed = now
	}
	for i, l := range s.all {
		since := l.meter.since.Load()
		stalled := time.Duration(now - since)
		if since == 0 || stalled < stallLimit {
			if was := s.stalled[i]; was > 0 {
				s.d.log.Warn("a relay loop is running again", "loop", l.number, "after", was.Round(tick))
			}
			s.stalled[i] = 0
			continue
		}
		if s.stalled[i] == 0 {
			s.d.log.Error("a relay loop is stuck: its connections are stalled", "loop", l.number, "for", stalled.Round(tick))
		}
		s.stalled[i] = stalled
	}
}
