package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/ipvsnl"
)

// counts remembers what the kernel has counted, which it forgets with each destination.
type counts struct {
	reading sync.Mutex // held by who reads all counters
	// next is when they may be read again; reading guards it.
	next time.Time

	mu sync.Mutex // guards what follows; never held while the kernel is asked
	// servers are of the virtual servers that are there.
	servers map[balancer.Key]*serverCounts
	// ended are what destinations had counted that are gone.
	ended *counters.Sums[counters.BackendKey, ipvsnl.Stats]
	// idle are flows that are not live, as they were last counted.
	idle map[balancer.BackendKey]uint64
}

// serverCounts is what the destinations of one virtual server have counted.
type serverCounts struct {
	of   counters.Port
	live map[netip.AddrPort]live
	// gone are destinations that were deleted, with what they had counted: the kernel keeps one for two minutes or more
	// (IP_VS_DEST_TRASH_PERIOD), and goes on counting from there if it comes back.
	gone map[netip.AddrPort]ipvsnl.Stats
	// epoch changes when destinations begin to count anew: what was read before does not fit any more.
	epoch uint64
	// was is what the virtual server as a whole had counted when its destinations were last read.
	was ipvsnl.Stats
	// busy: some of them had connections then.
	busy bool
}

// live is a destination's counters as they were last seen, what they were when it was made, and its connections.
type live struct {
	seen, from ipvsnl.Stats
	active     uint32
}

// mostGone is how many deleted destinations are remembered of one virtual server.
const mostGone = 256

func newCounts() *counts {
	return &counts{servers: map[balancer.Key]*serverCounts{}, ended: counters.New(counters.BackendKey.Whole, plus)}
}

// renames reports whether the key has not been of this port.
func (c *counts) renames(k balancer.Key, of counters.Port) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[k]
	return t == nil || t.of != of
}

// name has what is counted from now on be this port's.
func (c *counts) name(k balancer.Key, of counters.Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[k]
	if t == nil {
		t = &serverCounts{live: map[netip.AddrPort]live{}, gone: map[netip.AddrPort]ipvsnl.Stats{}}
		c.servers[k] = t
	}
	for at, l := range t.live {
		if t.of != (counters.Port{}) {
			c.addLocked(counters.BackendKey{Port: t.of, Addr: at}, minus(l.seen, l.from))
			l.from = l.seen
			t.live[at] = l
		}
	}
	t.of = of
}

// see takes in what the kernel says of all destinations of a virtual server.
func (c *counts) see(k balancer.Key, states []ipvsnl.DestinationState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.servers[k]; t != nil {
		t.epoch++ // a reading under way may have begun earlier
		c.seeLocked(k, t, states)
	}
}

func (c *counts) seeLocked(k balancer.Key, t *serverCounts, states []ipvsnl.DestinationState) {
	t.busy = false
	for at, l := range t.live { // some may be gone
		l.active = 0
		t.live[at] = l
	}
	for _, s := range states {
		l, known := t.live[s.Addr]
		if gone, ok := t.gone[s.Addr]; ok && !known && !less(s.Stats, gone) {
			l.from = gone
		}
		delete(t.gone, s.Addr)
		if less(s.Stats, l.seen) { // another program has reset them
			c.addLocked(counters.BackendKey{Port: t.of, Addr: s.Addr}, minus(l.seen, l.from))
			l.from = ipvsnl.Stats{}
		}
		l.seen, l.active = s.Stats, s.Active
		if k.Proto == balancer.UDP {
			l.active = s.Inactive // all that UDP has
		}
		t.live[s.Addr] = l
		t.busy = t.busy || s.Active+s.Inactive > 0
	}
}

// less reports whether a counter has gone back from before to now.
func less(now, before ipvsnl.Stats) bool {
	return now.Connections < before.Connections || now.InBytes < before.InBytes || now.OutBytes < before.OutBytes
}

func minus(a, b ipvsnl.Stats) ipvsnl.Stats {
	return ipvsnl.Stats{
		Connections: a.Connections - b.Connections, InPackets: a.InPackets - b.InPackets, OutPackets: a.OutPackets - b.OutPackets,
		InBytes: a.InBytes - b.InBytes, OutBytes: a.OutBytes - b.OutBytes,
	}
}

func plus(a, b ipvsnl.Stats) ipvsnl.Stats {
	return ipvsnl.Stats{
		Connections: a.Connections + b.Connections, InPackets: a.InPackets + b.InPackets, OutPackets: a.OutPackets + b.OutPackets,
		InBytes: a.InBytes + b.InBytes, OutBytes: a.OutBytes + b.OutBytes,
	}
}

func (c *counts) addLocked(k counters.BackendKey, s ipvsnl.Stats) { c.ended.Add(k, s, time.Now()) }

// end takes in that a destination is deleted.
func (c *counts) end(k balancer.Key, at netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.servers[k]; t != nil {
		t.epoch++
		c.endLocked(t, at)
	}
}

func (c *counts) endLocked(t *serverCounts, at netip.AddrPort) {
	l, ok := t.live[at]
	if !ok {
		return
	}
	c.addLocked(counters.BackendKey{Port: t.of, Addr: at}, minus(l.seen, l.from))
	delete(t.live, at)
	if len(t.gone) >= mostGone {
		clear(t.gone)
	}
	t.gone[at] = l.seen
}

// endAll takes in that a virtual server is not there any more. Its destinations, when they come back, are those of
// another, and the kernel counts from 0.
func (c *counts) endAll(k balancer.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[k]
	if t == nil {
		return
	}
	t.epoch++
	for at := range t.live {
		c.endLocked(t, at)
	}
	clear(t.gone)
	t.was, t.busy = ipvsnl.Stats{}, false
}

// forget drops a key that is no longer in use.
func (c *counts) forget(k balancer.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.servers, k)
}

// back reports whether ops add destinations that were there before.
func (c *counts) back(k balancer.Key, ops []ipvsnl.Op) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[k]
	return t != nil && slices.ContainsFunc(ops, func(op ipvsnl.Op) bool {
		_, gone := t.gone[op.Destination.Addr]
		return op.Verb == ipvsnl.AddDestination && gone
	})
}

// countTime bounds one reading of all counters.
const countTime = 10 * time.Second

// Counters implements dataplane.Dataplane: connections of each backend, those that are live (of TCP and SCTP, established
// ones), and bytes.
func (d *Dataplane) Counters() []dataplane.FrontendCount {
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	d.counts.read(ctx, d.conn, d.idleFlows)
	return d.unanswered.AddTo(append(d.counts.sums(), d.carried.Counters(ctx)...))
}

// read reads the destinations of the virtual servers that have counted anything since they were last read, or had
// connections then. What can't be read stays as it was last seen.
func (c *counts) read(ctx context.Context, conn ipvsnl.Conn, idle func(context.Context) map[balancer.BackendKey]uint64) {
	if !c.reading.TryLock() {
		return
	}
	defer c.reading.Unlock()
	started := time.Now()
	if started.Before(c.next) || !c.readLocked(ctx, conn) {
		return
	}
	flows := idle(ctx)
	c.next = counters.NextReading(started)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = flows
}

// readNow is read, however soon after another.
func (c *counts) readNow(ctx context.Context, conn ipvsnl.Conn) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.readLocked(ctx, conn)
}

func (c *counts) readLocked(ctx context.Context, conn ipvsnl.Conn) bool {
	services, err := conn.Services(ctx)
	if err != nil {
		return false
	}
	for _, s := range services {
		epoch, due := c.due(s)
		if !due {
			continue
		}
		states, err := conn.Destinations(ctx, s.Key)
		if err == nil {
			c.take(s, states, epoch)
		}
	}
	return true
}

func (c *counts) due(s ipvsnl.ServiceState) (epoch uint64, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[s.Key]
	if t == nil || !t.busy && t.was == s.Stats {
		return 0, false
	}
	return t.epoch, true
}

// take takes in a reading that began in an epoch.
func (c *counts) take(s ipvsnl.ServiceState, states []ipvsnl.DestinationState, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.servers[s.Key]; t != nil && t.epoch == epoch {
		c.seeLocked(s.Key, t, states)
		t.was = s.Stats
	}
}

// sums returns what has been counted so far, by service and port; idle flows are not live.
func (c *counts) sums() []dataplane.FrontendCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats, active := map[counters.BackendKey]ipvsnl.Stats{}, map[counters.BackendKey]uint64{}
	kept := map[counters.BackendKey]ipvsnl.Stats{}
	for key, t := range c.servers {
		for at, l := range t.live {
			k := counters.BackendKey{Port: t.of, Addr: at}
			stats[k], kept[k] = plus(stats[k], minus(l.seen, l.from)), plus(kept[k], l.seen)
			live := uint64(l.active)
			active[k] += live - min(live, c.idle[balancer.BackendKey{Frontend: key, Backend: at}])
		}
	}
	byPort := map[counters.Port]*dataplane.FrontendCount{}
	for k, s := range c.ended.With(stats, time.Now()) {
		if k.Service == "" {
			continue
		}
		f := byPort[k.Port]
		if f == nil {
			f = &dataplane.FrontendCount{Service: k.Service, Port: k.Port.Name}
			byPort[k.Port] = f
		}
		f.Connections += s.Connections
		f.In += s.InBytes
		f.Out += s.OutBytes
		f.KeptIn += kept[k].InBytes
		f.KeptOut += kept[k].OutBytes
		if k.Addr.IsValid() {
			f.Backends = append(f.Backends, dataplane.BackendCount{
				Backend: k.Addr, Connections: s.Connections, Kept: kept[k].Connections, Active: active[k],
			})
		}
	}
	all := make([]dataplane.FrontendCount, 0, len(byPort))
	for _, f := range byPort {
		all = append(all, *f)
	}
	return all
}
