package daemon

import (
	"context"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/store"
	"vipd/store/tomlfile"
)

// Reload reads the configuration and all definitions again, and returns the changes and problems.
// The argument by is the cause in the history.
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
		Pending: status.Pending(&s.Snapshot), ReloadChanges: d.reloaded.next(&s.Snapshot),
	}, nil
}

// reload reads everything again, and reports whether the result is applied.
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

// reloaded holds the services that the last reload reported. vipd follows files, so a change that
// an operator has just saved is often applied before the reload starts. The reload must report this
// change anyway.
type reloaded struct {
	mu       sync.Mutex // guards the fields below
	started  bool
	services snap.Map[balancer.Name, *balancer.Service]
}

// start records that this process's initial services have been reported.
func (r *reloaded) start(services snap.Map[balancer.Name, *balancer.Service]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started {
		r.started, r.services = true, services
	}
}

// next returns the changes since the last reload, and records that the services in s have been
// reported.
func (r *reloaded) next(s *store.Snapshot) api.ReloadChanges {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.services
	r.services = s.Services
	return transitions.ChangesOfFiles(before, s)
}

// settleTime limits how long a reload waits until its changes are applied. After that, vipd
// continues to apply them, and status shows the result.
const settleTime = 5 * time.Second

// settle waits until all compiled frontends are applied, except frontends in backoff, and reports
// whether they are.
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
