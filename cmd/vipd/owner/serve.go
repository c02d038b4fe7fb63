package owner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/lockfile"
	"vipd/cmd/vipd/owner/cleanup"
	onhost "vipd/dataplane/failover"
)

// Owner is the process: a core for the VIPs that vipd has told, and the socket by which it does.
type Owner struct {
	o      Options
	runDir string

	mu     sync.Mutex // guards what follows
	told   *api.OwnerTold
	text   []byte   // of told
	from   net.Conn // by which it came
	pid    int      // of who said it; 0 means that is not known
	heard  time.Time
	core   *core
	events []api.OwnerEvent
	number int
	counts map[failover.Noted]map[string]int
	way    []netip.Addr // the address from which etcd is reached
	// routers are the default gateways; nil if others are to be within reach.
	routers []netip.Addr
	// confirmed has for how long the session was confirmed at each tick, takeovers after how long VIPs were taken.
	confirmed, takeovers api.Histogram
	wake                 wake.Signal
}

// New returns an owner that keeps its socket in runDir.
func New(o Options, runDir string) *Owner {
	return &Owner{o: o, runDir: runDir, wake: wake.New(), counts: map[failover.Noted]map[string]int{}}
}

// Run owns what vipd tells until ctx ends.
func (o *Owner) Run(ctx context.Context) error {
	lock, err := lockfile.Take(filepath.Join(o.runDir, cleanup.LockFile))
	if errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("%w: another vipd owner runs here: stop it", err)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	path := filepath.Join(o.runDir, api.OwnerSocket)
	_ = os.Remove(path) // of an earlier process
	l, err := api.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("opening the owner's socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /vips", o.take)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { o.answer(w, true) })
	s := &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(o.o.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
		ConnState:   o.ended,
	}
	var serving sync.WaitGroup
	looking, end := context.WithCancel(ctx)
	serving.Go(func() { _ = s.Serve(l) })
	serving.Go(func() { o.findWay(looking) })
	if len(o.o.Reach) == 0 {
		o.findRouters()
		serving.Go(func() { onhost.FollowRouters(looking, o.findRouters) })
	}
	err = o.follow(ctx)
	end()
	_ = s.Close()
	serving.Wait()
	return err
}

// connection is the key of the connection in the context of a request.
type connection struct{}

// ended takes in that a connection has. Where nothing is served without vipd, and it was vipd's, its VIPs can't be served any more.
func (o *Owner) ended(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	o.mu.Lock()
	gone := o.from == c && o.told.Grace < leastPatience
	if gone {
		o.heard = time.Time{}
	}
	o.mu.Unlock()
	if gone {
		o.wake.Send()
	}
}

// take takes in what vipd says.
func (o *Owner) take(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<20))
	if err == nil {
		from, _ := r.Context().Value(connection{}).(net.Conn)
		err = o.hear(text, from)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.answer(w, false)
}

// hear takes in what vipd says. It says the same each second, as a rule, of up to 10,000 VIPs: that is not read again.
func (o *Owner) hear(text []byte, from net.Conn) error {
	o.mu.Lock()
	before := o.told
	same := before != nil && bytes.Equal(text, o.text)
	silent := time.Since(o.heard) >= patience(before)
	o.mu.Unlock()
	told := before
	if !same {
		told = &api.OwnerTold{}
		if err := json.Unmarshal(text, told); err != nil {
			return err
		}
	}
	o.mu.Lock()
	if o.from != from {
		o.from, o.pid = from, peer(from)
	}
	o.told, o.text, o.heard = told, text, time.Now()
	o.mu.Unlock()
	if !same || silent {
		o.wake.Send()
	}
	return nil
}

// leastPatience is how long a vipd that runs may be silent in any case: a busy host is no reason to move VIPs.
const leastPatience = 2 * time.Second

// hangs takes in that vipd has been stopped, and has said nothing since for as long as it may where nothing is served without it.
func (o *Owner) hangs() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told == nil || o.told.Grace >= leastPatience || o.heard.IsZero() || time.Since(o.heard) < o.told.Grace || !frozen(o.pid) {
		return false
	}
	o.heard = time.Time{}
	return true
}

// patience is how long vipd may be silent.
func patience(told *api.OwnerTold) time.Duration {
	if told == nil {
		return leastPatience
	}
	return max(told.Grace, leastPatience)
}

// hangTick is the time between two looks whether vipd hangs.
const hangTick = 50 * time.Millisecond

// follow runs a core for what is told.
func (o *Owner) follow(ctx context.Context) error {
	look, watch := time.NewTicker(time.Second), time.NewTicker(hangTick)
	defer look.Stop()
	defer watch.Stop()
	var at places
	stop := func() {}
	defer func() { stop() }()
	var last *api.OwnerTold
	var absent map[netip.Addr]string
	var another <-chan struct{}
	var doubt time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-another:
			stop()
			another, last, doubt = nil, nil, doubtful
		case <-o.wake:
		case <-look.C:
		case <-watch.C:
			if !o.hangs() {
				continue
			}
		}
		told := o.current()
		if told == nil {
			continue
		}
		policies := policiesOf(told)
		next, err := o.places(vipsOf(policies), at)
		if err == nil && another != nil {
			err = o.core.place(at, next)
		}
		switch {
		case err != nil && another != nil: // it serves on where it is
			o.core.failed("following the host's devices", err)
			continue
		case err != nil:
			return err
		case another == nil:
			if stop, err = o.begin(ctx, next, doubt); err != nil {
				return err
			}
			another = o.core.another
		}
		now := o.core.work.absent.reasons()
		if last == nil || last != told && !reflect.DeepEqual(last, told) || !next.same(at) || !maps.Equal(now, absent) {
			o.core.policies(policies, at, next)
			o.core.unplaced.Store(unplaced(policies, next))
			o.core.change(func(m *failover.Member) { m.Cannot, m.Absent = cannot(told, next.own, now) })
			at, last, absent = next, told, now
		}
	}
}

// findWay looks each second from which address etcd is reached, until ctx ends. Names may take long to resolve: follow must not wait for them.
func (o *Owner) findWay(ctx context.Context) {
	for on := true; on; on = wake.Sleep(ctx, time.Second) {
		way := wayTo(ctx, o.o.Etcd.Endpoints)
		o.mu.Lock()
		same := slices.Equal(o.way, way)
		o.way = way
		o.mu.Unlock()
		if !same {
			o.wake.Send()
		}
	}
}

// findRouters looks for the default gateways.
func (o *Owner) findRouters() {
	routers := onhost.Routers()
	o.mu.Lock()
	same := slices.Equal(o.routers, routers)
	o.routers = routers
	o.mu.Unlock()
	if !same {
		o.wake.Send()
	}
}

// places are where these VIPs may be, after they were in others.
func (o *Owner) places(vips []netip.Addr, before places) (places, error) {
	o.mu.Lock()
	way, routers := o.way, o.routers
	o.mu.Unlock()
	found, err := find(vips, o.o.Interfaces, o.o.Listen, way)
	if err != nil {
		return places{}, err
	}
	next := before.grown(found)
	for _, v := range vips {
		if device := before.devices[v]; device != "" && next.devices[v] == "" && !slices.Contains(next.own, v) {
			next.devices[v] = device // which is away, or down
		}
	}
	next.reach = next.within(slices.Concat(routers, o.o.Reach), vips)
	return next, nil
}

// place has heartbeats come and go by other devices, too.
func (c *core) place(before, after places) error {
	if reflect.DeepEqual(before.at, after.at) && slices.Equal(before.on, after.on) {
		return nil
	}
	done := make(chan error, 1)
	c.tell(func(failover.Time) []failover.Action {
		c.on = after.on
		done <- c.link.Change(after.at)
		return nil
	})
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-c.ended:
	}
	c.change(func(m *failover.Member) { m.At = after.at })
	return nil
}

// policies has the node know other VIPs: those that come are covered by the gate before, those that go until they are gone.
func (c *core) policies(policies map[netip.Addr]failover.Policy, before, after places) {
	moved := !maps.Equal(before.devices, after.devices) || !slices.Equal(before.on, after.on) || !maps.EqualFunc(before.reach, after.reach, slices.Equal)
	both := after
	both.devices = maps.Clone(after.devices)
	for v, device := range before.devices {
		both.devices[v] = cmp.Or(both.devices[v], device)
	}
	covers := func(p places) {
		if moved {
			c.work.queue.add(cover{p})
		}
	}
	c.tell(func(now failover.Time) []failover.Action {
		covers(both) // after what an earlier change still has to cover
		for i, name := range after.on {
			if !slices.Equal(c.reach[name], after.reach[name]) {
				c.node.Reaching(now, i)
			}
		}
		c.reach = after.reach
		return c.node.SetPolicies(now, policies)
	})
	c.tell(func(failover.Time) []failover.Action { covers(after); return nil })
}

// current is what was last told; where vipd is silent for too long, no VIP can be served.
func (o *Owner) current() *api.OwnerTold {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told == nil || time.Since(o.heard) < patience(o.told) {
		return o.told
	}
	silent := &api.OwnerTold{VIPs: maps.Clone(o.told.VIPs), Grace: o.told.Grace}
	for a, v := range silent.VIPs {
		v.Cannot = "vipd is silent"
		silent.VIPs[a] = v
	}
	return silent
}

// doubtful is how long other hosts may go on by the etcd that was, after this one has found that it is another.
const doubtful = time.Minute

// begin runs a core until what it returns is called.
func (o *Owner) begin(ctx context.Context, p places, doubt time.Duration) (stop func(), err error) {
	c, err := newCore(o.o, p, doubt)
	if err != nil {
		return func() {}, err
	}
	c.notes, c.left = o.note, o.left
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	started := make(chan struct{})
	running.Go(func() { c.run(ctx, started) })
	<-started
	o.mu.Lock()
	o.core = c
	o.mu.Unlock()
	return func() { cancel(); running.Wait() }, nil
}

func policiesOf(told *api.OwnerTold) map[netip.Addr]failover.Policy {
	out := map[netip.Addr]failover.Policy{}
	for a, v := range told.VIPs {
		out[a] = failover.Policy{Prefer: v.Prefer, Preempt: v.Preempt, Group: v.Group}
	}
	return out
}

// unplaced are the VIPs that no device has a network for.
func unplaced(policies map[netip.Addr]failover.Policy, at places) *[]netip.Addr {
	all := slices.DeleteFunc(vipsOf(policies), func(a netip.Addr) bool { return at.devices[a] != "" || slices.Contains(at.own, a) })
	return &all
}

// mostEvents bounds what is kept for vipd to hear.
const mostEvents = 200

// note logs what was done, and keeps it for vipd.
func (o *Owner) note(n failover.Note) {
	o.o.Log.Info(n.Text, "kind", string(n.Kind))
	o.mu.Lock()
	defer o.mu.Unlock()
	if n.Why != "" {
		if o.counts[n.Kind] == nil {
			o.counts[n.Kind] = map[string]int{}
		}
		o.counts[n.Kind][n.Why] += max(n.VIPs, 1)
	}
	if n.After > 0 {
		o.takeovers.Observe(n.After.Seconds())
	}
	o.number++
	o.events = append(o.events, api.OwnerEvent{Number: o.number, Time: time.Now(), Text: n.Text})
	o.events = o.events[max(0, len(o.events)-mostEvents):]
}

// left notes how long the session is confirmed from now.
func (o *Owner) left(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.confirmed.Observe(max(d.Seconds(), 0))
}
