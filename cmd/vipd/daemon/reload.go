package daemon

import (
	"context"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/store"
	"vipd/store/tomlfile"
)

// Reload reads the configuration and all definitions again, and returns what came of it. The history says so, and that
// by was the cause.
func (d *Daemon) Reload(ctx context.Context, by string, how tomlfile.Reload) (api.Reload, error) {
	done := d.transitions.Reloads(d.model.State(), by)
	traced := d.tracing.Reload(ctx)
	applied, err := d.reload(ctx, how)
	problems := d.views.Look().Problems()
	traced(err)
	s := d.model.State()
	done(s, problems, err)
	d.notify.status(d.summary)
	if err != nil {
		return api.Reload{}, err
	}
	return api.Reload{
		Revision: s.Snapshot.Revision, Services: s.Snapshot.Services.Len(), Problems: problems, Unapplied: !applied,
		ReloadChanges: d.reloaded.next(&s.Snapshot),
	}, nil
}

// reload reads everything again, and reports whether that is applied.
func (d *Daemon) reload(ctx context.Context, how tomlfile.Reload) (applied bool, err error) {
	d.notify.reloading()
	defer d.notify.reloaded()
	if _, err := d.files.ReloadAs(ctx, how); err != nil {
		return false, err
	}
	if err := d.model.Update(ctx, nil); err != nil {
		return false, err
	}
	d.modeSwitch.Reload(ctx)
	d.engine.Resync()
	return d.settle(ctx), nil
}

// reloaded are the services that the last reload showed. vipd follows files by itself, so what an operator has just saved is often applied
// when the reload begins: it is shown all the same.
type reloaded struct {
	mu       sync.Mutex // guards the rest
	started  bool
	services snap.Map[balancer.Name, *balancer.Service]
}

// start makes the first services of this process the ones that were shown.
func (r *reloaded) start(services snap.Map[balancer.Name, *balancer.Service]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started {
		r.started, r.services = true, services
	}
}

// next returns how s differs from what was shown before, and makes it what was shown.
func (r *reloaded) next(s *store.Snapshot) api.ReloadChanges {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.services
	r.services = s.Services
	return transitions.ChangesOfFiles(before, s)
}

// settleTime bounds how long a caller waits until what it asked for is applied. What takes longer goes on, and is seen
// in status.
const settleTime = 5 * time.Second

// settle waits until what is compiled is applied, but for frontends in backoff, and reports whether it is.
func (d *Daemon) settle(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		changed := d.engine.Changed()
		if d.views.Look().Settled() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}
