package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/dataplane/internal/worker"
)

// Dataplane forwards frontends with IPVS virtual servers. See the package documentation.
type Dataplane struct {
	log  *slog.Logger
	conn ipvsnl.Conn
	caps balancer.Capabilities
	// failover reports whether the kernel has the scheduler fo.
	failover          bool
	missingSchedulers []balancer.Scheduler
	// unavailable holds the reasons why families are unavailable.
	unavailable map[inet.Family]error
	// timeouts are the timeouts to set in the kernel.
	timeouts ipvsnl.Timeouts
	// trackedTimeout returns a lower bound for the timeout of open TCP connections, or 0 for none.
	// If it is nil, vipd does not raise the timeout.
	trackedTimeout func(context.Context) time.Duration
	counts         *counts
	drains         *worker.Loop
	carried        *dnat.Carried
	// unanswered counts the connections that WatchUnanswered has reported.
	unanswered counters.Unanswered

	mu     sync.Mutex // guards the fields below
	ledger *ledger
	// servers holds the wanted virtual servers, and vipd's existing virtual servers.
	servers map[balancer.Key]*server
	// ranges holds the servers with a port range. marks sets the marks of packets to them.
	ranges map[balancer.Key]*server
	marks  map[inet.Family]marker
	// quiet holds the keys of servers that have draining destinations.
	quiet map[balancer.Key]bool
	// due is when the keys in quiet must be checked again.
	due time.Time
	// ownIPv4 and foreignIPv4 are the numbers of vipd's and foreign virtual servers with IPv4
	// addresses. foreignIPv4 is updated at each check.
	ownIPv4, foreignIPv4 int
	// reapplied reports whether Observe has already requested that the engine apply everything.
	reapplied bool
	look      comparison
}

var (
	_ dataplane.Dataplane        = (*Dataplane)(nil)
	_ dataplane.Yields           = (*Dataplane)(nil)
	_ dataplane.ListsConnections = (*Dataplane)(nil)
	_ dataplane.EndsConnections  = (*Dataplane)(nil)
	_ dataplane.Explains         = (*Dataplane)(nil)
)

// newDataplane returns a dataplane that adopts the kernel's state. It changes nothing in the
// kernel.
func newDataplane(ctx context.Context, conn ipvsnl.Conn, carried *dnat.Carried, l *ledger, log *slog.Logger) (*Dataplane, error) {
	d := &Dataplane{
		log: log, conn: conn, caps: Capabilities(), counts: newCounts(), carried: carried, ledger: l,
		servers: map[balancer.Key]*server{}, ranges: map[balancer.Key]*server{}, quiet: map[balancer.Key]bool{}, unavailable: map[inet.Family]error{},
	}
	d.drains = worker.New(d.endDrains)
	var nearest balancer.Scheduler
	for _, name := range schedulers() {
		has, err := conn.HasScheduler(ctx, string(name))
		switch {
		case err != nil:
			return nil, err
		case !has:
			d.missingSchedulers = append(d.missingSchedulers, name)
		case nearest == "":
			nearest = name
		}
	}
	if nearest == "" {
		return nil, errors.New("IPVS mode needs a scheduler, but this kernel has none: run modprobe ip_vs_wrr")
	}
	for _, name := range append(d.missingSchedulers, balancer.Random) {
		d.caps.Nearest[name] = nearest
	}
	var err error
	d.failover, err = conn.HasScheduler(ctx, failover)
	return d, err
}

// Capabilities returns the features that IPVS mode supports on this host.
func (d *Dataplane) Capabilities() balancer.Capabilities { return d.caps }

// Traits implements dataplane.Dataplane.
func (d *Dataplane) Traits() dataplane.Traits {
	return dataplane.Traits{Needs: Needs(), Detail: d.missing(), Drains: true}
}

func (d *Dataplane) missing() string {
	var parts []string
	for _, f := range inet.Families() {
		if err := d.unavailable[f]; err != nil {
			parts = append(parts, fmt.Sprintf("no %s: %v", f, err))
		}
	}
	for _, name := range d.missingSchedulers {
		parts = append(parts, fmt.Sprintf("the kernel lacks the scheduler %s", name))
	}
	return strings.Join(parts, "; ")
}

// Digest returns a digest of everything that virtual servers depend on.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return digest(f) }

// closeTime limits how long Close may take.
const closeTime = 20 * time.Second

// Close changes nothing in the kernel if keep is set. The virtual servers continue to forward, and
// the next process adopts their state, including drains. Otherwise Close deletes all of vipd's
// virtual servers, which ends their connections.
func (d *Dataplane) Close(ctx context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	d.drains.Close()
	d.counts.readNow(ctx, d.conn)
	failed := d.carried.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !keep {
		_, err := removeOwned(ctx, d.conn, d.ledger, false)
		failed = errors.Join(failed, err, setTimeouts(ctx, d.conn, d.ledger, ipvsnl.Timeouts{}))
		clear(d.servers)
		clear(d.ranges)
		clear(d.quiet)
	}
	return errors.Join(failed, d.closeMarks(keep), d.ledger.save(), d.conn.Close())
}

// serverLocked returns the state of a key, and adds it to servers if missing.
func (d *Dataplane) serverLocked(k balancer.Key) *server {
	s := d.servers[k]
	if s == nil {
		s = &server{key: k, failover: d.failover}
		d.servers[k] = s
		if k.Port.IsRange() {
			d.ranges[k] = s
		}
	}
	return s
}

// changedLocked updates the dataplane's state after a change to s. was reports whether the virtual
// server existed before the change.
func (d *Dataplane) changedLocked(s *server, was bool) {
	if s.key.Addr.Is4() && was != s.exists {
		if s.exists {
			d.ownIPv4++
		} else {
			d.ownIPv4--
		}
	}
	if !s.exists {
		d.counts.endAll(s.key)
	}
	if s.quiet {
		d.quiet[s.key] = true
	} else {
		delete(d.quiet, s.key)
	}
	if s.front == nil && !s.exists && !s.unsure { // neither wanted nor existing
		delete(d.servers, s.key)
		delete(d.ranges, s.key)
		d.counts.forget(s.key)
	}
}

func (d *Dataplane) noteDoneLocked(s *server, op ipvsnl.Op) {
	was := s.exists
	if op.Verb == ipvsnl.DeleteDestination {
		d.counts.end(s.key, op.Destination.Addr)
	}
	s.noteDone(op)
	if op.Verb == ipvsnl.DeleteService {
		d.ledger.drop(s.key)
	}
	d.changedLocked(s, was)
}

func (d *Dataplane) noteGoneLocked(s *server) {
	was := s.exists
	s.noteGone()
	d.ledger.drop(s.key)
	d.changedLocked(s, was)
}

func (d *Dataplane) noteReadLocked(s *server, virtual ipvsnl.Service, destinations []ipvsnl.Destination) {
	was := s.exists
	s.noteRead(virtual, destinations)
	d.changedLocked(s, was)
}

func (d *Dataplane) refreshLocked(ctx context.Context, s *server) error {
	virtual, destinations, err := d.read(ctx, s.key)
	switch {
	case errors.Is(err, ipvsnl.ErrNoService):
		d.noteGoneLocked(s)
		return nil
	case err != nil:
		return err
	case s.isOther(virtual, destinations):
		d.noteGoneLocked(s)
		return d.foreign(ctx, s.key)
	}
	d.noteReadLocked(s, virtual, destinations)
	return nil
}

func (d *Dataplane) read(ctx context.Context, k balancer.Key) (ipvsnl.Service, []ipvsnl.Destination, error) {
	virtual, err := d.conn.Service(ctx, k)
	if err != nil {
		return ipvsnl.Service{}, nil, err
	}
	states, err := d.conn.Destinations(ctx, k)
	return virtual.Service, plain(states), err
}

func plain(states []ipvsnl.DestinationState) []ipvsnl.Destination {
	all := make([]ipvsnl.Destination, len(states))
	for i := range states {
		all[i] = states[i].Destination
	}
	return all
}

// command returns the options of ipvsadm that identify a virtual server: "-t 10.96.0.10:80", or
// "-f 7 -6" for a firewall mark.
func command(k balancer.Key) string {
	if k.Port.IsRange() {
		option := fmt.Sprintf("-f %d", ipvsnl.Mark(k))
		if !k.Addr.Is4() {
			option += " -6"
		}
		return option
	}
	option := map[balancer.Protocol]string{balancer.TCP: "-t", balancer.UDP: "-u", balancer.SCTP: "--sctp-service"}[k.Proto]
	return option + " " + k.AddrPort().String()
}
