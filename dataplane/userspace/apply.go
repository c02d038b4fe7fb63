package userspace

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"vipd/dataplane"
)

// Apply sets or removes the definition of each key in the batch. A key's failure does not affect
// other keys, and is returned in KeyErrors.
func (d *Dataplane) Apply(ctx context.Context, batch []dataplane.Change) error {
	d.applying.Lock()
	defer d.applying.Unlock()
	unready := d.replies.prepare(d, batch, d.keepsReplies)
	all := batch
	if len(unready) > 0 { // these frontends keep their previous definitions, unless those need the missing path as well
		batch = slices.DeleteFunc(slices.Clone(all), func(c dataplane.Change) bool { return unready[c.Key] != nil && !d.usesClientsAt(c.Key) })
	}
	failed, err := d.configure(batch)
	if err != nil {
		return err
	}
	maps.Copy(failed, unready)
	err = d.tables.commit(ctx)
	var each dataplane.KeyErrors
	if err != nil && !errors.As(err, &each) {
		return err
	}
	maps.Copy(failed, each)
	d.carried.Applied(all, failed)
	return failed.Err()
}

// configure sets the definitions of frontends, and requests the interception of their connections.
// The returned KeyErrors hold the keys that failed.
func (d *Dataplane) configure(batch []dataplane.Change) (dataplane.KeyErrors, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	if !d.running {
		if err := d.loops.start(); err != nil {
			return nil, err
		}
		d.running = true
		d.aside.start()
		d.reads.start()
		d.tasks.Go(d.janitor)
	}
	for _, c := range batch { // removals come first, so other frontends can open the freed ports
		if c.New == nil {
			d.removeLocked(c)
			continue
		}
		f := d.frontends[c.Key]
		if f == nil {
			f = newFrontend(d, c.Key)
			d.frontends[c.Key] = f
		}
		f.configure(c.New, d.counterLocked(c.New))
		d.chains.add(f)
	}
	failed := dataplane.KeyErrors{}
	for _, c := range batch {
		if c.New == nil {
			continue
		}
		f := d.frontends[c.Key]
		d.adoptClients(f)
		if err := d.tables.open(f); err != nil {
			failed[c.Key] = err
		}
		d.adopt(f)
		d.watchLocked(f)
	}
	return failed, nil
}

func (d *Dataplane) removeLocked(c dataplane.Change) {
	f := d.frontends[c.Key]
	if f == nil {
		return
	}
	d.tables.forget(f)
	d.chains.remove(f)
	if f.remove(time.Now()) {
		d.dropLocked(f)
		return
	}
	d.watchLocked(f)
}

// watchLocked adds f to the frontends that the janitor checks, or removes f from them.
func (d *Dataplane) watchLocked(f *frontend) {
	if f.timed() {
		d.timed[f] = struct{}{}
	} else {
		delete(d.timed, f)
	}
}

// dropLocked deletes a frontend that has neither a definition nor connections.
func (d *Dataplane) dropLocked(f *frontend) {
	delete(d.frontends, f.key)
	delete(d.timed, f)
	f.forgetClients()
}
