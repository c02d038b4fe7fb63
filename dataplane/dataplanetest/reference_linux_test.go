package dataplanetest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane"
)

// reference is the simplest dataplane that passes the suite. It listens on VIPs and copies bytes,
// and uses a single lock. With a fault, it violates a requirement, which the suite must detect.
type reference struct {
	fault fault

	mu      sync.Mutex
	fronts  map[balancer.Key]*front
	leaving []*front // removed frontends whose connections may continue
	counted map[balancer.Key]uint64
	applied int
	trips   bool
	kept    bool // Close was called with keep, so the next dataplane continues with this reference
	chosen  int
	running sync.WaitGroup
	sockets []io.Closer // the sockets of all flows, which a fault may keep open until Close
}

type fault string

// front is a frontend in use. Its fields are guarded by the reference's lock.
type front struct {
	f      *balancer.Frontend
	picker pick.Picker
	sticky *pick.Sticky
	// first maps each client with affinity to its first backend.
	first  map[netip.Addr]netip.AddrPort
	closer io.Closer // listener or packet socket, or nil while clients are refused
	gone   *atomic.Bool
	conns  map[*pair]bool
	flows  map[netip.AddrPort]*pair
	loads  map[netip.AddrPort]*atomic.Int64
}

// pair is a client's connection or flow, together with the connection to the backend.
type pair struct {
	client, backend net.Conn // client is nil for UDP flows
	from, to        netip.AddrPort
	end             *time.Timer
}

func (p *pair) close() {
	if p.client != nil {
		_ = p.client.(*net.TCPConn).SetLinger(0)
		_ = p.client.Close()
	}
	_ = p.backend.Close()
}

func newReference(f fault) *reference {
	r := &reference{fault: f, fronts: map[balancer.Key]*front{}, counted: map[balancer.Key]uint64{}}
	_, err := os.Stat(marker)
	r.trips = f == "trips over its past" && err == nil
	return r
}

// marker is the path of a file that exists while a reference runs.
const marker = "/run/dataplanetest-reference"

func (r *reference) Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode: "reference", Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP},
		Forwards: []balancer.Forward{balancer.NATForward}, Timeouts: true, MaxConnections: true,
	}
}

func (r *reference) Traits() dataplane.Traits { return dataplane.Traits{} }

func (r *reference) Digest(f *balancer.Frontend) dataplane.Digest { return dataplane.DigestOf(f) }

func (r *reference) Observe(context.Context) (dataplane.Observation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}}
	for k, f := range r.fronts {
		if r.fault != "observes too little" || k.Proto != balancer.UDP {
			seen.Digests[k] = r.Digest(f.f)
		}
		if f.gone.Load() {
			seen.Digests[k] = 0
		}
	}
	return seen, nil
}

func (r *reference) Intact(context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, f := range r.fronts {
		if f.gone.Load() && r.fault != "sees no damage" {
			return "the socket of " + k.String(), nil
		}
	}
	return "", nil
}

func (r *reference) damage() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.fronts {
		if f.closer != nil {
			_ = f.closer.Close()
		}
	}
}

func (r *reference) Apply(_ context.Context, batch []dataplane.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed := dataplane.KeyErrors{}
	if r.trips {
		return errors.New("another one is at work")
	}
	_ = os.WriteFile(marker, nil, 0o600) // if this fails, only the detection of one fault fails
	r.applied++
	if r.fault == "disturbs others rarely" && r.applied%10 == 0 {
		for _, f := range r.fronts {
			f.endLocked(func(netip.AddrPort) bool { return true })
		}
	}
	for _, c := range batch {
		if c.New == nil {
			r.removeLocked(c.Key)
		} else if err := r.setLocked(c.New); err != nil {
			failed[c.Key] = err
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

func (r *reference) removeLocked(k balancer.Key) {
	f := r.fronts[k]
	if f == nil || r.fault == "leaves services" {
		return
	}
	f.shutLocked()
	delete(r.fronts, k)
	if f.f.DrainTimeout == 0 || r.fault == "drains no services" {
		f.endLocked(func(netip.AddrPort) bool { return true })
		return
	}
	f.endFlowsLocked(func(netip.AddrPort) bool { return true })
	for c := range f.conns {
		if c.end == nil {
			c.end = time.AfterFunc(f.f.DrainTimeout, c.close)
		}
	}
	r.leaving = append(r.leaving, f)
}

func (r *reference) setLocked(f *balancer.Frontend) error {
	if r.fault == "IPv4 only" && f.Addr.Is6() {
		return nil
	}
	e := r.fronts[f.Key]
	if e == nil {
		e = &front{gone: new(atomic.Bool), conns: map[*pair]bool{}, flows: map[netip.AddrPort]*pair{}, loads: map[netip.AddrPort]*atomic.Int64{}}
		r.fronts[f.Key] = e
	}
	if r.fault == "disturbs itself" {
		e.endLocked(func(netip.AddrPort) bool { return true })
	}
	scheduler := f.Scheduler
	if r.fault == "ignores weights" && scheduler != balancer.RoundRobin || r.fault == "hashes nothing" && scheduler == balancer.SourceHash {
		scheduler = balancer.RoundRobin
	}
	e.f, e.picker = f, pick.Next(e.picker, scheduler, f.Backends, func(i int) int64 { return e.load(f.Backends[i].Addr).Load() })
	r.stickLocked(e)
	r.drainLocked(e)
	if f.Serves() || r.fault == "never refuses" {
		return r.serveLocked(e)
	}
	e.shutLocked()
	return nil
}

func (r *reference) stickLocked(e *front) {
	timeout := e.f.AffinityTimeout
	switch {
	case r.fault == "forgets clients":
		timeout = 0
	case r.fault == "never forgets clients" && timeout > 0:
		timeout = time.Hour
	}
	switch {
	case timeout == 0:
		e.sticky = nil
	case e.sticky == nil:
		e.sticky, e.first = pick.NewSticky(timeout, 1000), map[netip.Addr]netip.AddrPort{}
	default:
		e.sticky.SetTimeout(timeout)
	}
}

// load returns the connection counter of the backend at an address. The caller must hold the lock.
func (e *front) load(to netip.AddrPort) *atomic.Int64 {
	if e.loads[to] == nil {
		e.loads[to] = &atomic.Int64{}
	}
	return e.loads[to]
}

func (r *reference) drainLocked(e *front) {
	until := map[netip.AddrPort]time.Time{}
	for _, b := range e.f.Backends {
		switch {
		case b.State == balancer.Removed && r.fault == "drains not at all", b.State != balancer.Active && r.fault == "ends what leaves":
		case r.fault == "drains for ever", r.fault == "cuts nothing" && b.State == balancer.Down:
			until[b.Addr] = time.Time{}
		default:
			until[b.Addr] = b.Until
		}
	}
	now := time.Now()
	e.endLocked(func(to netip.AddrPort) bool {
		end, there := until[to]
		keeps := r.fault == "keeps flows" || r.fault == "keeps flows of node ports" && e.f.NodePort
		over := !there || !end.IsZero() && !end.After(now)
		return over && !keeps && r.fault != "drains for ever"
	})
	for c := range e.conns {
		if end := until[c.to]; !end.IsZero() && c.end == nil {
			c.end = time.AfterFunc(time.Until(end), c.close)
		}
	}
}

// endLocked closes the connections and flows of each backend for which done returns true.
func (e *front) endLocked(done func(to netip.AddrPort) bool) {
	for c := range e.conns {
		if done(c.to) {
			c.close()
		}
	}
	e.endFlowsLocked(done)
}

func (e *front) endFlowsLocked(done func(to netip.AddrPort) bool) {
	for from, c := range e.flows {
		if done(c.to) {
			c.close()
			delete(e.flows, from)
		}
	}
}

func (e *front) shutLocked() {
	if e.closer != nil {
		_ = e.closer.Close()
		e.closer = nil
	}
}

// Kill ends the connections of a service, and ignores all other fields of the query. The suite
// needs nothing else.
func (r *reference) Kill(_ context.Context, q dataplane.ConnectionQuery) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.fronts {
		if f.f.Service != q.Service {
			continue
		}
		if n += len(f.conns); r.fault != "kills nothing" {
			f.endLocked(func(netip.AddrPort) bool { return true })
		}
	}
	return n, nil
}

// serveLocked opens the socket of a frontend, unless it is already open.
func (r *reference) serveLocked(e *front) error {
	if e.closer != nil && !e.gone.Load() {
		return nil
	}
	e.endFlowsLocked(func(netip.AddrPort) bool { return true }) // these flows send their answers through the closed socket
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	gone := new(atomic.Bool)
	e.gone = gone
	if e.f.Proto == balancer.UDP {
		pc, err := lc.ListenPacket(context.Background(), "udp", e.f.AddrPort().String())
		if err != nil {
			return err
		}
		e.closer = pc
		r.running.Go(func() { r.datagrams(e, pc.(*net.UDPConn)); r.lost(e, pc, gone) })
		return nil
	}
	ln, err := lc.Listen(context.Background(), "tcp", e.f.AddrPort().String())
	if err != nil {
		return err
	}
	e.closer = ln
	r.running.Go(func() { r.accept(e, ln); r.lost(e, ln, gone) })
	return nil
}

// lost records that a socket was closed as damage, unless the reference has closed it.
func (r *reference) lost(e *front, c io.Closer, gone *atomic.Bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone.Store(e.closer == c)
}

func (r *reference) Close(_ context.Context, keep bool) error {
	_ = os.Remove(marker)
	if r.fault == "clears rules of others" {
		_ = exec.Command("iptables", "-w", "-F", "FORWARD").Run()
	}
	if keep {
		r.kept = true
		if r.fault == "loses what it keeps" {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, f := range r.fronts {
				f.endLocked(func(netip.AddrPort) bool { return true })
			}
		}
		return nil
	}
	r.mu.Lock()
	for k := range r.fronts {
		if r.fault != "leaves services" {
			r.removeLocked(k)
		}
	}
	for _, f := range r.leaving {
		f.endLocked(func(netip.AddrPort) bool { return true })
	}
	sockets := r.sockets
	r.mu.Unlock()
	if r.fault != "leaves services" {
		for _, s := range sockets {
			_ = s.Close()
		}
		r.running.Wait()
	}
	return nil
}

// Explain implements [dataplane.Explains].
func (r *reference) Explain(_ context.Context, f *balancer.Frontend, _ netip.AddrPort) (x dataplane.Explanation, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.fronts[f.Key]
	for _, b := range f.Backends {
		full := b.MaxConnections > 0 && e != nil && e.load(b.Addr).Load() >= int64(b.MaxConnections)
		if b.State == balancer.Active && !full {
			x.Shares = append(x.Shares, dataplane.Share{Backend: b.Addr, Part: 1})
		}
	}
	return x, nil
}
