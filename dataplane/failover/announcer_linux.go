package failover

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/neigh"
)

// firstRate and repeatRate are the maximum rates of announcements, in frames per second. Switches
// throttle higher rates. An IPv4 address needs two frames.
const (
	firstRate  = 5000
	repeatRate = 500
)

// repeats returns the delays after which an address is announced again. Announcements are repeated
// because a switch may lose the first one.
func repeats() []time.Duration {
	return []time.Duration{100 * time.Millisecond, 1100 * time.Millisecond, 2200 * time.Millisecond}
}

// Announcer announces addresses to the neighbors: immediately, three more times within 2.2 s, and
// then at an interval. Its methods are safe for concurrent use.
type Announcer struct {
	every time.Duration
	send  func(device int, a netip.Addr, ask bool) error
	log   *slog.Logger
	wake  wake.Signal
	// links is sent when a link's MAC may have changed.
	links wake.Signal

	mu    sync.Mutex // guards the fields below
	first []*announcement
	again []*announcement // sorted by due
	all   map[netip.Addr]*announcement
	sent  uint64
}

// announcement is an address and the time of its next announcement.
type announcement struct {
	addr   netip.Addr
	device int
	began  time.Time
	round  int // number of announcements so far
	due    time.Time
	over   bool
}

// NewAnnouncer returns an announcer that repeats each announcement at an interval. If the interval
// is 0, an address is no longer announced after 2.2 s.
func NewAnnouncer(every time.Duration, log *slog.Logger) *Announcer {
	return &Announcer{every: every, log: log, wake: wake.New(), links: wake.New(), all: map[netip.Addr]*announcement{}}
}

// Announce announces addresses that were added to a device, in this order and before any repeats.
// If an address is already being announced, its schedule starts from the beginning.
func (n *Announcer) Announce(device int, addrs []netip.Addr) {
	now := time.Now()
	n.mu.Lock()
	for _, a := range addrs {
		n.forgetLocked(a)
		next := &announcement{addr: a, device: device, began: now}
		n.all[a] = next
		n.first = append(n.first, next)
	}
	n.mu.Unlock()
	n.wake.Send()
}

// calm is how long after Announce other hosts' claims to the address are ignored, because the last
// owner's late frames may still arrive.
const calm = time.Second

// Defend announces an address immediately because another host claims it, at most once a second
// (RFC 5227, section 2.4). It returns false and does nothing if this host does not announce the
// address, or has done so for less than calm.
func (n *Announcer) Defend(a netip.Addr) bool {
	n.mu.Lock()
	x := n.all[a]
	n.mu.Unlock()
	if x == nil || time.Since(x.began) < calm {
		return false
	}
	n.Announce(x.device, []netip.Addr{a})
	return true
}

// Forget stops announcing addresses.
func (n *Announcer) Forget(addrs []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.forgetLocked(a)
	}
}

func (n *Announcer) forgetLocked(a netip.Addr) {
	if old := n.all[a]; old != nil {
		old.over = true // next skips it when it is due
		delete(n.all, a)
	}
}

// All returns the addresses that are being announced.
func (n *Announcer) All() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.all))
}

func (n *Announcer) Sent() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent
}

// Run sends announcements until ctx is canceled.
func (n *Announcer) Run(ctx context.Context) {
	senders := map[int]*neigh.Sender{}
	if n.send == nil {
		n.send = func(device int, a netip.Addr, ask bool) error { return sendBy(senders, device, a, ask) }
		defer func() {
			for _, s := range senders {
				_ = s.Close() // the socket was used only to send
			}
		}()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	first, again := pace{rate: firstRate}, pace{rate: repeatRate}
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		case <-n.links:
			n.announceChanged(senders)
		case <-timer.C:
		}
		timer.Reset(n.round(&first, &again))
	}
}

func (n *Announcer) announceChanged(senders map[int]*neigh.Sender) {
	for device, s := range senders {
		if s.Changed() {
			n.Announce(device, n.on(device))
		}
	}
}

// on returns the addresses that are being announced on a device.
func (n *Announcer) on(device int) (addrs []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for a, x := range n.all {
		if x.device == device {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// sendBy announces an address through its device's sender. If ask is true, it also asks whether
// another host has the address. If a sender fails, it is opened again for the next address, because
// the device may have been replaced.
func sendBy(senders map[int]*neigh.Sender, device int, a netip.Addr, ask bool) error {
	s := senders[device]
	if s == nil {
		var err error
		if s, err = neigh.Open(device); err != nil {
			return err
		}
		senders[device] = s
	}
	err := s.Announce(a)
	if err == nil && ask {
		err = s.Ask(a)
	}
	if err != nil {
		_ = s.Close() // err has the details
		delete(senders, device)
	}
	return err
}

// round sends the due announcements within the rate limits, and returns the time until the next
// call.
func (n *Announcer) round(first, again *pace) time.Duration {
	for {
		now := time.Now()
		next, wait := n.next(now, first, again)
		if next == nil {
			return wait
		}
		// After the first announcements, the last owner may still answer, so only later
		// announcements ask.
		if err := n.send(next.device, next.addr, next.round > len(repeats())); err != nil {
			n.log.Warn("a VIP can't be announced", "address", next.addr, "err", err)
		}
	}
}

// next returns the next address to announce, and schedules its repeat. If no announcement is due,
// it returns nil and the time until the next one is due.
func (n *Announcer) next(now time.Time, first, again *pace) (next *announcement, wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.first) > 0 && n.first[0].over {
		n.first = n.first[1:]
	}
	for len(n.again) > 0 && n.again[0].over {
		n.again = n.again[1:]
	}
	switch {
	case len(n.first) > 0:
		if wait = first.wait(now, n.first[0].addr); wait > 0 {
			return nil, wait
		}
		next, n.first = n.first[0], n.first[1:]
	case len(n.again) > 0:
		if wait = max(n.again[0].due.Sub(now), again.wait(now, n.again[0].addr)); wait > 0 {
			return nil, wait
		}
		next, n.again = n.again[0], n.again[1:]
	default:
		return nil, time.Hour
	}
	n.sent++
	next.round++
	switch later := repeats(); {
	case next.round <= len(later):
		next.due = next.began.Add(later[next.round-1])
	case n.every > 0:
		next.due = now.Add(n.every)
	default:
		return next, 0
	}
	i, _ := slices.BinarySearchFunc(n.again, next.due, func(x *announcement, due time.Time) int { return x.due.Compare(due) })
	n.again = slices.Insert(n.again, i, next)
	return next, 0
}

// pace limits the number of frames per second. After an idle period, it allows only a short burst.
type pace struct {
	rate int
	free time.Time // when the next frame may be sent
}

// burst is the period whose frames may be sent together after an idle period. It makes up for
// imprecise timers.
const burst = 10 * time.Millisecond

// wait returns the time until an address's frames may be sent. If it is 0, the frames count as
// sent.
func (p *pace) wait(now time.Time, a netip.Addr) time.Duration {
	if wait := p.free.Sub(now); wait > 0 {
		return max(wait, time.Millisecond)
	}
	if now.Sub(p.free) > burst {
		p.free = now.Add(-burst)
	}
	frames := 1
	if a.Is4() {
		frames = 2
	}
	p.free = p.free.Add(time.Duration(frames) * time.Second / time.Duration(p.rate))
	return 0
}
