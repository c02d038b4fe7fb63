package ipvsnltest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// Fake is an in-memory [ipvsnl.Conn]. It refuses the same changes as the kernel. A test makes the
// same changes to a Fake and to the kernel. A Fake's methods are safe for concurrent use. Its
// fields must be set before use.
type Fake struct {
	// Schedulers lists the available schedulers. If nil, all IPVS schedulers are available.
	Schedulers []string
	// Fault is called before each change. If it returns an error, the change is not made. Fault may
	// be nil. It must not call the Fake.
	Fault func(ipvsnl.Op) error

	mu          sync.Mutex
	closed      bool
	services    map[balancer.Key]*fakeService
	ops         []ipvsnl.Op
	timeouts    ipvsnl.Timeouts
	connections []ipvsnl.Connection
}

type fakeService struct {
	ipvsnl.ServiceState
	destinations []ipvsnl.DestinationState // newest first, as in the kernel
}

// KernelSchedulers lists the schedulers of Linux 6.
var KernelSchedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"}

var _ ipvsnl.Conn = (*Fake)(nil)

// NewFake returns a Fake without virtual servers, with the kernel's timeouts.
func NewFake() *Fake {
	return &Fake{
		services: map[balancer.Key]*fakeService{},
		timeouts: ipvsnl.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute},
	}
}

// Ops returns the requested changes, including refused changes.
func (f *Fake) Ops() []ipvsnl.Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ops)
}

// SetDestination changes a destination's state, such as its connections and counters, as traffic
// would.
func (f *Fake) SetDestination(key balancer.Key, at netip.AddrPort, change func(*ipvsnl.DestinationState)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[key]
	if s == nil {
		return fmt.Errorf("reading virtual server %s: %w", key, ipvsnl.ErrNoService)
	}
	i := s.find(at)
	if i < 0 {
		return ipvsnl.ErrNoDestination
	}
	change(&s.destinations[i])
	return nil
}

// SetConnections replaces the connection table.
func (f *Fake) SetConnections(all []ipvsnl.Connection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.connections = slices.Clone(all)
}

// Flush deletes all virtual servers, as ipvsadm --clear does.
func (f *Fake) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.services)
}

// usable locks the Fake, unless the Fake can't be used. In that case, it returns an error.
func (f *Fake) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return os.ErrClosed
	}
	return nil
}

// Do implements Conn.
func (f *Fake) Do(ctx context.Context, ops []ipvsnl.Op) []error {
	errs := make([]error, len(ops))
	failed := false
	for i, op := range ops {
		if errs[i] = f.usable(ctx); errs[i] == nil {
			errs[i] = f.doLocked(op)
			f.mu.Unlock()
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		return nil
	}
	return errs
}

func (f *Fake) doLocked(op ipvsnl.Op) error {
	f.ops = append(f.ops, op)
	if err := op.Invalid(); err != nil {
		return err
	}
	if f.Fault != nil {
		if err := f.Fault(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return op.Refused(f.changeLocked(op))
}

// changeLocked performs the kernel's checks in the same order as the kernel, and makes the change.
func (f *Fake) changeLocked(op ipvsnl.Op) error {
	s := f.services[op.Service.Key]
	switch {
	case s == nil && op.Verb != ipvsnl.AddService:
		return syscall.ESRCH
	case s != nil && op.Verb == ipvsnl.AddService:
		return syscall.EEXIST
	case op.Verb <= ipvsnl.EditService && !f.has(op.Service.Scheduler):
		return syscall.ENOENT
	}
	switch op.Verb {
	case ipvsnl.AddService:
		f.services[op.Service.Key] = &fakeService{ServiceState: ipvsnl.ServiceState{Service: kept(op.Service)}}
	case ipvsnl.EditService:
		s.Service = kept(op.Service)
	case ipvsnl.DeleteService:
		delete(f.services, op.Service.Key)
	default:
		return s.change(op)
	}
	return nil
}

// hashed is the flag with which the kernel marks a virtual server in its table.
const hashed ipvsnl.Flags = 1 << 1

// kept returns the part of a virtual server that the kernel stores.
func kept(s ipvsnl.Service) ipvsnl.Service {
	s.Flags &^= hashed
	return s
}

func (s *fakeService) find(at netip.AddrPort) int {
	return slices.IndexFunc(s.destinations, func(d ipvsnl.DestinationState) bool { return d.Addr == at })
}

func (s *fakeService) change(op ipvsnl.Op) error {
	d := op.Destination
	i := s.find(d.Addr)
	if op.Verb == ipvsnl.DeleteDestination {
		if i < 0 {
			return syscall.ENOENT
		}
		s.destinations = slices.Delete(s.destinations, i, i+1)
		return nil
	}
	switch {
	case d.Addr.Addr().Is4() != s.Key.Addr.Is4() && d.Forward != balancer.TunnelForward:
		return syscall.EINVAL
	case op.Verb == ipvsnl.AddDestination && i >= 0:
		return syscall.EEXIST
	case op.Verb == ipvsnl.EditDestination && i < 0:
		return syscall.ENOENT
	case op.Verb == ipvsnl.AddDestination && !reachable(d.Addr.Addr()):
		return syscall.EINVAL
	}
	if op.Verb == ipvsnl.EditDestination {
		s.destinations[i].Destination = d
		return nil
	}
	s.destinations = slices.Insert(s.destinations, 0, ipvsnl.DestinationState{Destination: d})
	return nil
}

// reachable reports whether the kernel would try to send packets to the address.
func reachable(a netip.Addr) bool {
	if a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return false
	}
	return !a.IsUnspecified() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast())
}

// Service implements Conn.
func (f *Fake) Service(ctx context.Context, key balancer.Key) (ipvsnl.ServiceState, error) {
	if err := f.usable(ctx); err != nil {
		return ipvsnl.ServiceState{}, err
	}
	defer f.mu.Unlock()
	s := f.services[key]
	if s == nil {
		return ipvsnl.ServiceState{}, fmt.Errorf("reading virtual server %s: %w", key, ipvsnl.ErrNoService)
	}
	return s.ServiceState, nil
}

// Services implements Conn.
func (f *Fake) Services(ctx context.Context) ([]ipvsnl.ServiceState, error) {
	if err := f.usable(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	var all []ipvsnl.ServiceState
	for s := range maps.Values(f.services) {
		all = append(all, s.ServiceState)
	}
	return all, nil
}

// Destinations implements Conn.
func (f *Fake) Destinations(ctx context.Context, key balancer.Key) ([]ipvsnl.DestinationState, error) {
	if err := f.usable(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	s := f.services[key]
	if s == nil {
		return nil, fmt.Errorf("reading destinations of virtual server %s: %w", key, ipvsnl.ErrNoService)
	}
	return slices.Clone(s.destinations), nil
}

// Table implements Conn.
func (f *Fake) Table(ctx context.Context) (map[balancer.Key]ipvsnl.TableService, error) {
	if err := f.usable(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	table := make(map[balancer.Key]ipvsnl.TableService, len(f.services))
	for key, s := range f.services {
		e := ipvsnl.TableService{Scheduler: s.Scheduler}
		for _, d := range s.destinations {
			if d.Forward == ipvsnl.BypassForward {
				d.Forward = balancer.NATForward
			}
			e.Destinations = append(e.Destinations, ipvsnl.TableDestination{Addr: d.Addr, Forward: d.Forward, Weight: d.Weight, Active: d.Active, Inactive: d.Inactive})
		}
		table[key] = e
	}
	return table, nil
}

// Services4 implements Conn.
func (f *Fake) Services4(ctx context.Context) (n int, err error) {
	if err := f.usable(ctx); err != nil {
		return 0, err
	}
	defer f.mu.Unlock()
	for key := range f.services {
		if key.Addr.Is4() {
			n++
		}
	}
	return n, nil
}

// Timeouts implements Conn.
func (f *Fake) Timeouts(ctx context.Context) (ipvsnl.Timeouts, error) {
	if err := f.usable(ctx); err != nil {
		return ipvsnl.Timeouts{}, err
	}
	defer f.mu.Unlock()
	return f.timeouts, nil
}

// SetTimeouts implements Conn.
func (f *Fake) SetTimeouts(ctx context.Context, t ipvsnl.Timeouts) error {
	if err := t.Invalid(); err != nil {
		return err
	}
	if err := f.usable(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	for _, c := range []struct{ to, from *time.Duration }{
		{&f.timeouts.TCP, &t.TCP}, {&f.timeouts.TCPFin, &t.TCPFin}, {&f.timeouts.UDP, &t.UDP},
	} {
		if *c.from != 0 {
			*c.to = *c.from
		}
	}
	return nil
}

// Connections implements Conn.
func (f *Fake) Connections(ctx context.Context) iter.Seq2[ipvsnl.Connection, error] {
	return func(yield func(ipvsnl.Connection, error) bool) {
		if err := f.usable(ctx); err != nil {
			yield(ipvsnl.Connection{}, err)
			return
		}
		all := f.connections
		f.mu.Unlock()
		for _, c := range all {
			if !yield(c, nil) {
				return
			}
		}
	}
}

// HasScheduler implements Conn.
func (f *Fake) HasScheduler(ctx context.Context, name string) (bool, error) {
	if err := f.usable(ctx); err != nil {
		return false, err
	}
	defer f.mu.Unlock()
	return f.has(name), nil
}

func (f *Fake) has(scheduler string) bool {
	if f.Schedulers == nil {
		return slices.Contains(KernelSchedulers, scheduler)
	}
	return slices.Contains(f.Schedulers, scheduler)
}

// Close implements Conn.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}
