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

// Dataplane carries frontends out by virtual servers of the kernel. See the package's documentation.
type Dataplane struct {
	log  *slog.Logger
	conn ipvsnl.Conn
	caps balancer.Capabilities
	// failover: the kernel has the scheduler fo.
	failover bool
	// lacks are the schedulers that the kernel does not have.
	lacks []balancer.Scheduler
	// no says why a family is unavailable; nil means it is available.
	no map[inet.Family]error
	// timeouts are those that the kernel is given.
	timeouts ipvsnl.Timeouts
	counts   *counts
	drains   *worker.Loop
	carried  *dnat.Carried
	// unanswered has the connections that WatchUnanswered has counted.
	unanswered counters.Unanswered

	mu     sync.Mutex // guards what follows
	ledger *ledger
	// servers are those that are wanted, and those that are there and ours.
	servers map[balancer.Key]*server
	// quiet are those of them with destinations that are only kept for their connections.
	quiet map[balancer.Key]bool
	// due is when those are to be looked at again.
	due time.Time
	// ours4 and others4 are how many virtual servers with IPv4 addresses there are: vipd's, and others' as last seen.
	ours4, others4 int
	// told: the engine was asked to apply everything once.
	told bool
	look look
}

var (
	_ dataplane.Dataplane        = (*Dataplane)(nil)
	_ dataplane.Yields           = (*Dataplane)(nil)
	_ dataplane.ListsConnections = (*Dataplane)(nil)
	_ dataplane.EndsConnections  = (*Dataplane)(nil)
	_ dataplane.Explains         = (*Dataplane)(nil)
)

// newDataplane returns a dataplane over what is in the kernel. It changes nothing there.
func newDataplane(ctx context.Context, conn ipvsnl.Conn, carried *dnat.Carried, l *ledger, log *slog.Logger) (*Dataplane, error) {
	d := &Dataplane{
		log: log, conn: conn, caps: Capabilities(), counts: newCounts(), carried: carried, ledger: l,
		servers: map[balancer.Key]*server{}, quiet: map[balancer.Key]bool{}, no: map[inet.Family]error{},
	}
	d.drains = worker.New(d.endDrains)
	var nearest balancer.Scheduler
	for _, name := range schedulers() {
		has, err := conn.HasScheduler(ctx, string(name))
		switch {
		case err != nil:
			return nil, err
		case !has:
			d.lacks = append(d.lacks, name)
		case nearest == "":
			nearest = name
		}
	}
	if nearest == "" {
		return nil, errors.New("IPVS mode needs a scheduler, and this kernel has none: load the module ip_vs_wrr (modprobe ip_vs_wrr)")
	}
	for _, name := range append(d.lacks, balancer.Random) {
		d.caps.Nearest[name] = nearest
	}
	var err error
	d.failover, err = conn.HasScheduler(ctx, failover)
	return d, err
}

// Capabilities says what was found to work here.
func (d *Dataplane) Capabilities() balancer.Capabilities { return d.caps }

// Traits implements dataplane.Dataplane.
func (d *Dataplane) Traits() dataplane.Traits {
	return dataplane.Traits{Needs: Needs(), Detail: d.missing(), Drains: true}
}

// missing says in one line what is missing here, if anything is.
func (d *Dataplane) missing() string {
	var parts []string
	for _, f := range inet.Families() {
		if err := d.no[f]; err != nil {
			parts = append(parts, fmt.Sprintf("no %s: %v", f, err))
		}
	}
	for _, name := range d.lacks {
		parts = append(parts, fmt.Sprintf("the kernel lacks the scheduler %s", name))
	}
	return strings.Join(parts, "; ")
}

// Digest covers what virtual servers are made of.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return digest(f) }

// closeTime bounds how long Close may take.
const closeTime = 20 * time.Second

// Close leaves everything in place with keep: the kernel goes on, and the next process takes over, with the drains that
// are under way. Otherwise it deletes every virtual server of ours, and their connections end.
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
		clear(d.quiet)
	}
	return errors.Join(failed, d.ledger.save(), d.conn.Close())
}

// serverLocked returns what is known of a key.
func (d *Dataplane) serverLocked(k balancer.Key) *server {
	s := d.servers[k]
	if s == nil {
		s = &server{key: k, failover: d.failover}
		d.servers[k] = s
	}
	return s
}

// changedLocked takes in that s has changed from being there or not.
func (d *Dataplane) changedLocked(s *server, was bool) {
	if s.key.Addr.Is4() && was != s.there {
		if s.there {
			d.ours4++
		} else {
			d.ours4--
		}
	}
	if !s.there {
		d.counts.endAll(s.key)
	}
	if s.quiet {
		d.quiet[s.key] = true
	} else {
		delete(d.quiet, s.key)
	}
	if s.front == nil && !s.there && !s.unsure { // nor is anything of it left that an earlier process has told of
		delete(d.servers, s.key)
		d.counts.forget(s.key)
	}
}

// didLocked takes in that the kernel has done op for s.
func (d *Dataplane) didLocked(s *server, op ipvsnl.Op) {
	was := s.there
	if op.Verb == ipvsnl.DeleteDestination {
		d.counts.end(s.key, op.Destination.Addr)
	}
	s.did(op)
	if op.Verb == ipvsnl.DeleteService {
		d.ledger.drop(s.key)
	}
	d.changedLocked(s, was)
}

// goneLocked takes in that the virtual server of s is not there.
func (d *Dataplane) goneLocked(s *server) {
	was := s.there
	s.gone()
	d.ledger.drop(s.key)
	d.changedLocked(s, was)
}

// sawLocked takes in what the kernel says of the virtual server of s.
func (d *Dataplane) sawLocked(s *server, virtual ipvsnl.Service, destinations []ipvsnl.Destination) {
	was := s.there
	s.saw(virtual, destinations)
	d.changedLocked(s, was)
}

// refreshLocked reads the virtual server of s.
func (d *Dataplane) refreshLocked(ctx context.Context, s *server) error {
	virtual, destinations, err := d.read(ctx, s.key)
	switch {
	case errors.Is(err, ipvsnl.ErrNoService):
		d.goneLocked(s)
		return nil
	case err != nil:
		return err
	case s.isOther(virtual, destinations):
		d.goneLocked(s)
		return d.foreign(ctx, s.key)
	}
	d.sawLocked(s, virtual, destinations)
	return nil
}

// read reads a virtual server and its destinations.
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

// command is the option of ipvsadm that names a virtual server: "-t 10.96.0.10:80".
func command(k balancer.Key) string {
	option := map[balancer.Protocol]string{balancer.TCP: "-t", balancer.UDP: "-u", balancer.SCTP: "--sctp-service"}[k.Proto]
	return option + " " + k.AddrPort().String()
}
