package failover

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
)

// Options are what a Teller needs.
type Options struct {
	// Socket is the owner's.
	Socket string
	// Changed is closed with the next state.
	Changed func() <-chan struct{}
	// Grace is for how long what is served goes on without this process, in a mode in which it does.
	Grace  time.Duration
	Events *events.History
}

// Serving is what the owner has to know of what is served.
type Serving struct {
	// State is what is compiled.
	State *model.State
	// Unready says what this vipd has yet to do before it serves anything.
	Unready []string
	// Keeps: what is served goes on without this process, for Options.Grace at most.
	Keeps bool
}

// The times between two messages, and how long vipd may be silent where nothing is served without it.
const (
	every        = time.Second
	everyServing = 150 * time.Millisecond
	shortGrace   = 500 * time.Millisecond
	least        = 50 * time.Millisecond
)

// Teller tells the owner. Nil stands for a host that owns no VIPs.
type Teller struct {
	o      Options
	client *api.OwnerClient
	status atomic.Pointer[api.OwnerStatus] // nil means the owner does not answer
	failed atomic.Pointer[error]
	seen   api.OwnerEvent // the owner's last one; without a number it has told none, and those before its time are of an earlier vipd
}

// New returns a Teller that has told nothing yet.
func New(o Options) *Teller {
	return &Teller{o: o, seen: api.OwnerEvent{Time: time.Now()}, client: api.NewOwnerClient(o.Socket)}
}

// Status is how the owner is; nil means it does not answer.
func (t *Teller) Status() *api.OwnerStatus {
	if t == nil {
		return nil
	}
	return t.status.Load()
}

// Problems are what keeps VIPs from having an owner here.
func (t *Teller) Problems() []balancer.Problem {
	if t == nil {
		return nil
	}
	var texts []string
	if err := t.failed.Load(); err != nil {
		texts = append(texts, fmt.Sprintf(`VIPs with hold = "one" are not taken here: vipd owner does not answer (%s): systemctl start vipd-owner`, *err))
	}
	if s := t.status.Load(); s != nil {
		texts = append(texts, s.Problems...)
	}
	var out []balancer.Problem
	for _, text := range texts {
		out = append(out, balancer.Problem{Severity: balancer.SeverityError, Field: "ownership", Text: text})
	}
	return out
}

// Run tells what look returns until ctx ends.
func (t *Teller) Run(ctx context.Context, look func() Serving) error {
	if t == nil {
		return nil
	}
	defer t.client.Close()
	for began := time.Now(); ; {
		changed := t.o.Changed()
		v := look()
		switch {
		case !v.State.Complete:
		case v.Keeps && len(v.Unready) > 0 && time.Since(began) < t.o.Grace: // what an earlier vipd has told goes on, as what it has applied does
			t.take(ctx, t.client.Status, false)
		default:
			t.tell(ctx, t.message(&v))
		}
		pause := every
		if !v.Keeps {
			pause = everyServing
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			v = look()
			t.farewell(&v)
			return nil
		case <-timer.C:
		case <-changed:
			timer.Stop()
			time.Sleep(least) // changes come in bursts
		}
	}
}

// farewell says at the end that nothing is served here any more, where that is so.
func (t *Teller) farewell(v *Serving) {
	if v.Keeps || !v.State.Complete {
		return
	}
	m := t.message(v)
	for a, vip := range m.VIPs {
		vip.Cannot = "vipd stops"
		m.VIPs[a] = vip
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	t.tell(ctx, m)
}

// message is what the owner is told.
func (t *Teller) message(v *Serving) api.OwnerTold {
	s, m := v.State, api.OwnerTold{VIPs: map[netip.Addr]api.OwnedVIP{}, Grace: t.o.Grace}
	if !v.Keeps {
		m.Grace = shortGrace
	}
	add := func(a netip.Addr) {
		p := s.Inputs.PolicyOf(a)
		if _, there := m.VIPs[a]; there || p.Hold != balancer.HoldOne {
			return
		}
		told := api.OwnedVIP{Prefer: p.Prefer, Preempt: time.Duration(p.Preempt), Group: p.Group}
		told.Cannot = cannot(v, a, p.Require)
		for _, f := range balancer.On(s.Desired.Frontends, a) {
			told.Serves = true
			told.KeepsSource = told.KeepsSource || s.Env.Capabilities.KeepsSource && f.Forward == balancer.NATForward && f.SNAT != balancer.AlwaysSNAT
		}
		m.VIPs[a] = told
	}
	for a := range s.Inputs.VIPs.Keys() {
		add(a)
	}
	for a := range s.Desired.Standings.Keys() {
		add(a)
	}
	return m
}

// cannot says why a VIP could not be served here; "" means it could.
func cannot(v *Serving, a netip.Addr, require balancer.Require) string {
	s := v.State
	if why := v.Unready; len(why) > 0 {
		return "vipd is not ready: " + why[0]
	}
	if require == balancer.RequireNode {
		return ""
	}
	served, local := map[balancer.Name]bool{}, map[balancer.Name]bool{}
	for _, f := range balancer.On(s.Desired.Frontends, a) {
		served[f.Service] = served[f.Service] || f.Serves()
		local[f.Service] = local[f.Service] || servesLocally(f, s.Env.Local)
	}
	where := ""
	if require == balancer.RequireLocal {
		served, where = local, " on this host"
	}
	for _, name := range slices.Sorted(maps.Keys(served)) { // the same each time: what changes is written to etcd
		if !served[name] {
			return fmt.Sprintf("service %s has no usable endpoint%s", name, where)
		}
	}
	return ""
}

// tell sends a message and takes the answer in.
func (t *Teller) tell(ctx context.Context, m api.OwnerTold) {
	t.take(ctx, func(ctx context.Context) (*api.OwnerStatus, error) { return t.client.Tell(ctx, m) }, len(m.VIPs) > 0)
}

// take takes in what the owner answers. Needed: there are VIPs that it is to own.
func (t *Teller) take(ctx context.Context, ask func(context.Context) (*api.OwnerStatus, error), needed bool) {
	s, err := ask(ctx)
	if err != nil {
		t.status.Store(nil)
		if t.failed.Store(nil); needed {
			t.failed.Store(&err)
		}
		return
	}
	t.failed.Store(nil)
	t.status.Store(s)
	for _, e := range t.unseen(s.Events) {
		t.o.Events.Record(events.Event{At: e.Time, Kind: events.VIP, Level: slog.LevelInfo, Text: e.Text, Cause: "vipd owner"})
	}
}

// unseen returns the owner's events that are new. Clocks step, and another owner counts anew: all behind the last one that was seen are.
func (t *Teller) unseen(all []api.OwnerEvent) []api.OwnerEvent {
	if len(all) == 0 {
		return nil
	}
	last := t.seen
	t.seen = all[len(all)-1]
	if last.Number == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(e api.OwnerEvent) bool { return e.Time.Before(last.Time) })
	}
	i := slices.IndexFunc(all, func(e api.OwnerEvent) bool { return e.Number == last.Number && e.Time.Equal(last.Time) })
	return all[i+1:]
}

// servesLocally reports whether a frontend has a usable endpoint on this host.
func servesLocally(f *balancer.Frontend, local []netip.Addr) bool {
	return slices.ContainsFunc(f.Backends, func(b balancer.Backend) bool {
		return b.State == balancer.Active && (b.Addr.Addr().IsLoopback() || slices.Contains(local, b.Addr.Addr()))
	})
}
