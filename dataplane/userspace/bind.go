package userspace

import (
	"context"

	"vipd/balancer"
)

// interception brings connections to frontends. Its methods are called with the dataplane's lock held, but for intact.
type interception interface {
	// open makes the way to f what its definition says.
	open(f *frontend) error
	// forget takes the way to f away; its sockets are closed by the caller.
	forget(f *frontend)
	// commit carries out what the calls before have asked for.
	commit(ctx context.Context) error
	// served reports whether the way to f is there.
	served(f *frontend) bool
	inspect(ctx context.Context) (damage []string, err error)
	intact(ctx context.Context) (reason string, err error)
	// stop takes all ways away, and leaves what established connections need; close takes that too.
	stop(ctx context.Context) error
	close(ctx context.Context) error
}

// bind is the interception by sockets at VIP:port.
type bind struct{}

func (bind) open(f *frontend) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.key.Proto == balancer.UDP {
		return f.openPacketsLocked()
	}
	c := f.conf.Load()
	switch {
	case c.closed():
		f.shutListenerLocked()
		return nil
	case f.listener != nil:
		return refilter(f.listener, c)
	}
	return f.listen()
}

func (bind) forget(*frontend)                          {}
func (bind) commit(context.Context) error              { return nil }
func (bind) inspect(context.Context) ([]string, error) { return nil, nil }
func (bind) intact(context.Context) (string, error)    { return "", nil }
func (bind) stop(context.Context) error                { return nil }
func (bind) close(context.Context) error               { return nil }
func (bind) served(f *frontend) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conf.Load()
	return c.closed() || f.listener != nil || f.packets != nil
}

// shut stops accepting, and ends all flows.
func (f *frontend) shut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shutListenerLocked()
	f.shutPacketsLocked()
}

func (f *frontend) shutListenerLocked() {
	if f.listener != nil {
		_ = f.listener.Close() // its loop ends
		f.listener = nil
	}
}
