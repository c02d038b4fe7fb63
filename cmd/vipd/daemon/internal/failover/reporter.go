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
	"vipd/store/statedir"
)

// Options configures a Reporter.
type Options struct {
	// Socket is the path of the owner's socket.
	Socket string
	// Changed returns a channel that is closed when the state next changes.
	Changed func() <-chan struct{}
	// Grace is how long the mode may serve VIPs without this process.
	Grace  time.Duration
	Events *events.History
	// StateDir stores this host's standby setting, and the last changes to its groups.
	StateDir *statedir.Dir
	// Standby receives true if an operator wants this host to own no VIPs, and false otherwise. It
	// is nil if etcd decides owners.
	Standby func(on bool)
}

// Serving is the part of the daemon's state that is reported to vipd owner.
type Serving struct {
	// State is the compiled model.
	State *model.State
	// Unready lists the reasons why this vipd does not serve yet.
	Unready []string
	// Keeps reports whether the mode serves VIPs without this process, for at most Options.Grace.
	Keeps bool
}

// A report is sent every reportInterval, or every servingInterval if the mode can't serve without
// this process. shortGrace is the grace time of that mode. minPause is the minimum pause between
// two reports.
const (
	reportInterval  = time.Second
	servingInterval = 150 * time.Millisecond
	shortGrace      = 500 * time.Millisecond
	minPause        = 50 * time.Millisecond
)

// Reporter reports to the owner. A nil Reporter represents a host that owns no VIPs.
type Reporter struct {
	o      Options
	client *api.OwnerClient
	status atomic.Pointer[api.OwnerStatus] // nil if vipd owner does not answer
	failed atomic.Pointer[error]
	memory memory
	seen   api.OwnerEvent // the last event that was read; number 0 means none, and earlier events belong to a previous vipd
}

// New returns a Reporter that has sent no report yet.
func New(o Options) *Reporter {
	r := &Reporter{o: o, seen: api.OwnerEvent{Time: time.Now()}, client: api.NewOwnerClient(o.Socket)}
	if o.Standby != nil {
		r.memory.load(o.StateDir)
		o.Standby(r.memory.standby() != nil)
	}
	return r
}

// Status returns the state of vipd owner, or nil if vipd owner does not answer.
func (r *Reporter) Status() *api.OwnerStatus {
	if r == nil {
		return nil
	}
	return r.status.Load()
}

// Problems returns the reasons why VIPs can't have an owner on this host.
func (r *Reporter) Problems() []balancer.Problem {
	if r == nil {
		return nil
	}
	var texts []string
	if text := r.memory.problem(); text != "" {
		texts = append(texts, text)
	}
	if err := r.failed.Load(); err != nil {
		texts = append(texts, fmt.Sprintf(`this host owns no VIPs with hold = "one", because vipd owner does not answer (%s): systemctl start vipd-owner`, *err))
	}
	if s := r.status.Load(); s != nil {
		texts = append(texts, s.Problems...)
	}
	var out []balancer.Problem
	for _, text := range texts {
		out = append(out, balancer.Problem{Severity: balancer.SeverityError, Field: "ownership", Text: text})
	}
	return out
}

// Run reports the state that the function look returns, until ctx is done.
func (r *Reporter) Run(ctx context.Context, look func() Serving) error {
	if r == nil {
		return nil
	}
	defer r.client.Close()
	for began := time.Now(); ; {
		changed := r.o.Changed()
		v := look()
		switch {
		case !v.State.Complete:
		case v.Keeps && len(v.Unready) > 0 && time.Since(began) < r.o.Grace: // the previous vipd's report is still valid, as are its rules
			r.process(ctx, r.client.Status, false)
		default:
			r.send(ctx, r.report(&v))
		}
		pause := reportInterval
		if !v.Keeps {
			pause = servingInterval
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			v = look()
			r.reportEnd(&v)
			return nil
		case <-timer.C:
		case <-changed:
			timer.Stop()
			time.Sleep(minPause) // changes arrive in bursts
		}
	}
}

// reportEnd reports that this host no longer serves because vipd is stopping. It sends no report if
// the mode serves without this process.
func (r *Reporter) reportEnd(v *Serving) {
	if v.Keeps || !v.State.Complete {
		return
	}
	m := r.report(v)
	for a, vip := range m.VIPs {
		vip.Cannot = "vipd stops"
		m.VIPs[a] = vip
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r.send(ctx, m)
}

func (r *Reporter) report(v *Serving) api.OwnerReport {
	s, m := v.State, api.OwnerReport{VIPs: map[netip.Addr]api.OwnedVIP{}, Grace: r.o.Grace, Standby: v.State.Env.Standby}
	if !v.Keeps {
		m.Grace = shortGrace
	}
	add := func(a netip.Addr) {
		p := s.Inputs.PolicyOf(a)
		if _, known := m.VIPs[a]; known || p.Hold != balancer.HoldOne {
			return
		}
		vip := api.OwnedVIP{Prefer: p.Prefer, Preempt: time.Duration(p.Preempt), Group: p.Group}
		vip.Cannot = blockReason(v, a, p.Require)
		for _, f := range balancer.FrontendsOn(s.Desired.Frontends, a) {
			vip.Serves = true
			vip.KeepsSource = vip.KeepsSource || s.Env.Capabilities.KeepsSource && f.Forward == balancer.NATForward && f.SNAT != balancer.AlwaysSNAT
		}
		m.VIPs[a] = vip
	}
	for a := range s.Inputs.VIPs.Keys() {
		add(a)
	}
	for a := range s.Desired.VIPStates.Keys() {
		add(a)
	}
	return m
}

// blockReason returns the reason why a VIP can't be served on this host, or "".
func blockReason(v *Serving, a netip.Addr, require balancer.Require) string {
	s := v.State
	if why := v.Unready; len(why) > 0 {
		return "vipd is not ready: " + why[0]
	}
	if require == balancer.RequireNode {
		return ""
	}
	served, local := map[balancer.Name]bool{}, map[balancer.Name]bool{}
	for _, f := range balancer.FrontendsOn(s.Desired.Frontends, a) {
		served[f.Service] = served[f.Service] || f.Serves()
		local[f.Service] = local[f.Service] || servesLocally(f, s.Env.Local)
	}
	where := ""
	if require == balancer.RequireLocal {
		served, where = local, " on this host"
	}
	for _, name := range slices.Sorted(maps.Keys(served)) { // sorted, because each new text is written to etcd
		if !served[name] {
			return fmt.Sprintf("service %s has no usable endpoint%s", name, where)
		}
	}
	return ""
}

func (r *Reporter) send(ctx context.Context, m api.OwnerReport) {
	r.process(ctx, func(ctx context.Context) (*api.OwnerStatus, error) { return r.client.Report(ctx, m) }, len(m.VIPs) > 0)
}

// process calls the function ask and handles the answer of vipd owner. If needed is true, there are
// VIPs that need the owner, so a missing answer is a problem.
func (r *Reporter) process(ctx context.Context, ask func(context.Context) (*api.OwnerStatus, error), needed bool) {
	s, err := ask(ctx)
	if err != nil {
		r.status.Store(nil)
		if r.failed.Store(nil); needed {
			r.failed.Store(&err)
		}
		return
	}
	r.failed.Store(nil)
	r.status.Store(s)
	r.memory.note(s.VRRP, time.Now())
	for _, e := range r.unseen(s.Events) {
		r.o.Events.Record(events.Event{At: e.Time, Kind: events.VIP, Level: slog.LevelInfo, Text: e.Text, Cause: "vipd owner"})
	}
}

// unseen returns all events after the last seen event. It does not compare times or numbers,
// because clocks may step, and a restarted vipd owner counts from 1.
func (r *Reporter) unseen(all []api.OwnerEvent) []api.OwnerEvent {
	if len(all) == 0 {
		return nil
	}
	last := r.seen
	r.seen = all[len(all)-1]
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
