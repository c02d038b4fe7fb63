package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/lockfile"
	"vipd/cmd/vipd/daemon/internal/modeswitch"
	"vipd/dataplane"
	"vipd/dataplane/handover"
)

// errReplaced is the reason why this vipd stops if another vipd replaces it.
var errReplaced = errors.New("another vipd takes over")

func (d *Daemon) handoverPath() string { return filepath.Join(d.config.RunDir, api.HandoverSocket) }

// takeOver receives a previous process's sockets and connections: from systemd's descriptor store
// or, with Options.Replace, from the running vipd, which then stops.
func (d *Daemon) takeOver() (err error) {
	queue, err := fromStore()
	if err == nil && queue == nil && d.Replace {
		queue, err = requestHandover(d.handoverPath())
	}
	if err != nil || queue == nil {
		return err
	}
	if d.inherited, err = queue.All(); err != nil {
		return fmt.Errorf("taking over from the previous vipd: %w", err)
	}
	if len(d.inherited) > 0 {
		d.Log.Info("took over sockets and connections from the previous vipd", "items", len(d.inherited))
	}
	return nil
}

// handOver hands the sockets and connections to the next process if that process takes over.
// Otherwise it closes the dataplane, and removes the addresses if the mode can't serve without this
// process.
func (d *Daemon) handOver() error {
	_ = d.spare.Close()
	d.modeSwitch.Close()
	mode, limit := d.modeSwitch.Serving(), d.modeSwitch.DrainTime()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	d.notify.extend(limit + 2*releaseTime)
	if from, can := dataplane.As[dataplane.HandsOver](mode.Dataplane); can && !mode.Keeps {
		switch queue, err := d.successor(ctx); {
		case err != nil:
			d.Log.Error("connections drain because they can't be handed over", "err", err)
		case queue != nil:
			return from.HandOver(ctx, queue) // addresses and redirects stay in place for the next process
		}
	}
	if !mode.Keeps { // otherwise, programs on the host could receive clients' packets
		if err := d.host.Refuse(ctx); err != nil {
			d.Log.Error("new clients at the VIPs can't be refused", "err", err)
		}
	}
	err := mode.Dataplane.Close(d.leaving(ctx, mode), mode.Keeps)
	if err != nil {
		err = fmt.Errorf("closing %s mode: %w", mode.Name, err)
	}
	if mode.Keeps {
		return err
	}
	ctx, cancel = context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	return errors.Join(err, d.host.Release(ctx)) // an address that stays would be a black hole
}

// leaving returns a context that limits how long vipd waits for connections to end. If the mode
// can't serve without this process, it also logs the number of connections.
func (d *Daemon) leaving(ctx context.Context, mode *modeswitch.Chosen) context.Context {
	if mode.Keeps {
		return ctx
	}
	open := uint64(0)
	for _, f := range mode.Dataplane.Counters() {
		for _, b := range f.Backends {
			open += b.Active
		}
	}
	if until, bounded := ctx.Deadline(); bounded && open > 0 {
		d.Log.Info("stopping: waiting for open connections to end; another signal ends them now", "connections", open, "at_most", time.Until(until).Round(time.Second))
		err := lockfile.Note(d.lock, fmt.Sprintf("is stopping: its connections can continue until %s; another SIGTERM ends them now", until.Format(time.TimeOnly)))
		if err != nil {
			d.Log.Warn("vipctl can't show that vipd is stopping", "err", err)
		}
	}
	if d.Hurry == nil {
		return ctx
	}
	hurried, cancel := context.WithCancel(ctx)
	context.AfterFunc(d.Hurry, cancel)
	return hurried
}

// successor returns the queue to the vipd that asked to take over. If no vipd has asked, it returns
// the queue that storeQueue stores with systemd, or nil.
func (d *Daemon) successor(ctx context.Context) (*handover.Queue, error) {
	if d.successorQueue != nil {
		return d.successorQueue, nil
	}
	var err error
	d.successorQueue, err = d.storeQueue(ctx)
	return d.successorQueue, err
}

// descriptors are file descriptors that are reserved for the shutdown. Programs such as iptables
// need about ten each. Without the reserve, a process without free descriptors could not remove its
// rules.
type descriptors []*os.File

const spare = 16

func spareDescriptors() (all descriptors, err error) {
	for range spare {
		f, err := os.Open("/") // a container may lack /dev/null
		if err != nil {
			return nil, errors.Join(fmt.Errorf("reserving descriptors for the shutdown (raise LimitNOFILE of the unit, or ulimit -n): %w", err), all.Close())
		}
		all = append(all, f)
	}
	return all, nil
}

// Close releases the descriptors. It may be called several times.
func (d descriptors) Close() error {
	for _, f := range d {
		_ = f.Close()
	}
	return nil
}

// releaseTime limits how long removing the addresses may take.
const releaseTime = 20 * time.Second
