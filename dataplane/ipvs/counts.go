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

// counts stores the kernel's counts, because the kernel forgets them when it deletes a destination.
type counts struct {
	reading sync.Mutex // locked while all counters are read
	// next is the earliest time at which all counters may be read again. It is guarded by reading.
	next time.Time

	mu sync.Mutex // guards the fields below; never locked during a system call
	// servers holds the counts of existing virtual servers.
	servers map[balancer.Key]*serverCounts
	// ended holds the counts of removed destinations.
	ended *counters.Sums[counters.BackendKey, ipvsnl.Stats]
	// idle holds the number of idle flows of each endpoint at the last count.
	idle map[balancer.BackendKey]uint64
}

// serverCounts holds the counts of a virtual server's destinations.
type serverCounts struct {
	port counters.Port
	live map[netip.AddrPort]live
	// gone holds the counts of deleted destinations. The kernel retains a deleted destination for
	// at least two minutes (IP_VS_DEST_TRASH_PERIOD), and continues its counts if the destination
	// is restored.
	gone map[netip.AddrPort]ipvsnl.Stats
	// epoch changes when counters may restart, so readings that started earlier are ignored.
	epoch uint64
	// was holds the virtual server's total counters at the last reading of its destinations.
	was ipvsnl.Stats
	// busy reports whether any destination had connections at that reading.
	busy bool
}

// live holds an existing destination's last counters (seen), its counters when it was created
// (from), and its number of connections.
type live struct {
	seen, from ipvsnl.Stats
	active     uint32
}

// maxGone is the maximum number of deleted destinations that are remembered per virtual server.
const maxGone = 256

func newCounts() *counts {
	return &counts{servers: map[balancer.Key]*serverCounts{}, ended: counters.New(counters.BackendKey.Whole, plus)}
}

// renames reports whether the key's counts now belong to a port other than of.
func (c *counts) renames(k balancer.Key, of counters.Port) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[k]
	return t == nil || t.port != of
}

// setPort makes the key's future counts belong to a port.
func (c *counts) setPort(k balancer.Key, of counters.Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[k]
	if t == nil {
		t = &serverCounts{live: map[netip.AddrPort]live{}, gone: map[netip.AddrPort]ipvsnl.Stats{}}
		c.servers[k] = t
	}
	for at, l := range t.live {
		if t.port != (counters.Port{}) {
			c.addLocked(counters.BackendKey{Port: t.port, Addr: at}, minus(l.seen, l.from))
			l.from = l.seen
			t.live[at] = l
		}
	}
	t.port = of
}

// observe processes the kernel's state of a virtual server's destinations.
func (c *counts) observe(k balancer.Key, states []ipvsnl.DestinationState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.servers[k]; t != nil {
		t.epoch++ // a reading in progress may be older than states
		c.seeLocked(k, t, states)
	}
}

func (c *counts) seeLocked(k balancer.Key, t *serverCounts, states []ipvsnl.DestinationState) {
	t.busy = false
	for at, l := range t.live { // destinations that are missing from states have no connections
		l.active = 0
		t.live[at] = l
	}
	for _, s := range states {
		l, known := t.live[s.Addr]
		if gone, ok := t.gone[s.Addr]; ok && !known && !less(s.Stats, gone) {
			l.from = gone
		}
		delete(t.gone, s.Addr)
		if less(s.Stats, l.seen) { // another program has reset the counters
			c.addLocked(counters.BackendKey{Port: t.port, Addr: s.Addr}, minus(l.seen, l.from))
			l.from = ipvsnl.Stats{}
		}
		l.seen, l.active = s.Stats, s.Active
		if k.Proto == balancer.UDP {
			l.active = s.Inactive // UDP has no active connections
		}
		t.live[s.Addr] = l
		t.busy = t.busy || s.Active+s.Inactive > 0
	}
}

// less reports whether any counter in now is lower than in before.
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

// end records that a destination was deleted, and retains its counts.
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
	c.addLocked(counters.BackendKey{Port: t.port, Addr: at}, minus(l.seen, l.from))
	delete(t.live, at)
	if len(t.gone) >= maxGone {
		clear(t.gone)
	}
	t.gone[at] = l.seen
}

// endAll records that a virtual server was removed, and retains its counts. A new virtual server's
// destinations start counting at 0.
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

// forget removes the state of an unused key.
func (c *counts) forget(k balancer.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.servers, k)
}

// back reports whether ops restore destinations whose counts the kernel may continue.
func (c *counts) back(k balancer.Key, ops []ipvsnl.Op) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.servers[k]
	return t != nil && slices.ContainsFunc(ops, func(op ipvsnl.Op) bool {
		_, gone := t.gone[op.Destination.Addr]
		return op.Verb == ipvsnl.AddDestination && gone
	})
}

// countTime limits how long reading all counters may take.
const countTime = 10 * time.Second

// Counters implements [dataplane.Dataplane]. It returns each backend's total connections, its live
// connections (for TCP and SCTP, the established ones) and its bytes.
func (d *Dataplane) Counters() []dataplane.FrontendCount {
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	d.counts.read(ctx, d.conn, d.idleFlows)
	return d.unanswered.AddTo(append(d.counts.sums(), d.carried.Counters(ctx)...))
}

// read reads the destinations of the virtual servers whose counters have changed since the last
// reading, or that had connections then. If a reading fails, the previous counts remain.
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

// readNow reads the counters immediately, without the usual pause.
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
			c.record(s, states, epoch)
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

// record stores the counters of a reading, unless the epoch has changed since the reading started.
func (c *counts) record(s ipvsnl.ServiceState, states []ipvsnl.DestinationState, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.servers[s.Key]; t != nil && t.epoch == epoch {
		c.seeLocked(s.Key, t, states)
		t.was = s.Stats
	}
}

// sums returns all counts by service and port. Idle flows are not live.
func (c *counts) sums() []dataplane.FrontendCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats, active := map[counters.BackendKey]ipvsnl.Stats{}, map[counters.BackendKey]uint64{}
	kept := map[counters.BackendKey]ipvsnl.Stats{}
	for key, t := range c.servers {
		for at, l := range t.live {
			k := counters.BackendKey{Port: t.port, Addr: at}
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
