package userspace

import (
	"context"
	"net"

	"vipd/balancer"
)

// interception brings connections to frontends. Its methods are called by one goroutine at a time, open and forget with
// the dataplane's lock held, the others, which may take their time, without.
type interception interface {
	// open makes the way to f what its definition says.
	open(f *frontend) error
	// forget takes the way to f away; its sockets are closed by the caller.
	forget(f *frontend)
	// commit does what the calls before have asked for.
	commit(ctx context.Context) error
	// lose has conntrack forget the UDP flows to frontends whose sockets it led to are closed, at any time: the ports may be others' next.
	lose(ctx context.Context, keys map[balancer.Key]bool) error
	// translates reports whether conntrack translates connections to some frontends, and to all.
	translates() (some, all bool)
	// served reports whether the way to f is there.
	served(f *frontend) bool
	inspect(ctx context.Context) (damage []string, err error)
	intact(ctx context.Context) (reason string, err error)
	// stop shuts the frontends and has all ways lead to closed ports, which are held: established connections
	// live on. close takes the ways away, and leaves the sockets of frontends that are bound.
	stop(ctx context.Context, frontends []*frontend) error
	close(ctx context.Context) error
	// shared returns the sockets that several frontends share.
	shared() []*net.TCPListener
	// inherit leaves the ways of an earlier process, which lead UDP to these ports, until the first commit replaces them.
	inherit(ports map[balancer.Key]uint16)
}

// bind is the interception by sockets at VIP:port.
type bind struct{}

func (bind) translates() (some, all bool) { return false, false }

func (bind) open(f *frontend) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bound = true
	if f.key.Proto == balancer.UDP {
		return f.openPacketsLocked()
	}
	c := f.conf.Load()
	switch {
	case c.closed():
		if ln := f.d.inherited.listener(f); ln != nil {
			f.listener = ln
		}
		f.shutListenerLocked()
		return f.holdLocked(false)
	case f.listener != nil:
		return refit(f.listener, c)
	}
	f.letGoLocked()
	return f.listen()
}

// holdLocked keeps the closed port at the VIP from others, who would get the clients.
func (f *frontend) holdLocked(silent bool) error {
	if f.held != nil {
		return nil
	}
	held, err := f.d.hold(f.vip, f.key.Proto, silent)
	if err != nil {
		return explainListen(f, err)
	}
	f.held = held
	return nil
}

func (f *frontend) letGoLocked() {
	f.held.close()
	f.held = nil
}

func (bind) forget(*frontend)             {}
func (bind) commit(context.Context) error { return nil }

// lose has nothing to do: conntrack leads to VIPs themselves.
func (bind) lose(context.Context, map[balancer.Key]bool) error { return nil }

func (bind) inspect(context.Context) ([]string, error) { return nil, nil }
func (bind) intact(context.Context) (string, error)    { return "", nil }
func (bind) close(context.Context) error               { return nil }
func (bind) shared() []*net.TCPListener                { return nil }
func (bind) inherit(map[balancer.Key]uint16)           {}

func (bind) stop(_ context.Context, frontends []*frontend) error {
	for _, f := range frontends {
		f.shut()
		if !f.d.yielded { // another one of this kind may be to have the port
			f.refuse()
		}
	}
	return nil
}

// refuse keeps the port at the VIP closed, as it is while no backend is active, until letGo. Where it can't be silent,
// clients are refused.
func (f *frontend) refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed {
		return
	}
	err := f.holdLocked(f.conf.Load().NoEndpoints == balancer.DropClients)
	if err != nil {
		err = f.holdLocked(false)
	}
	if err != nil {
		f.d.log.Warn("a port can't be held while connections drain", "frontend", f.key, "err", err)
	}
}

func (f *frontend) letGo() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.letGoLocked()
}

func (bind) served(f *frontend) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conf.Load()
	return f.listener != nil || f.packets != nil || c.closed() && (f.held != nil || !holds)
}

// shut stops accepting, and ends all flows.
func (f *frontend) shut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shutListenerLocked()
	f.shutPacketsLocked()
	f.letGoLocked()
}

func (f *frontend) shutListenerLocked() {
	if f.listener != nil {
		_ = f.listener.Close() // its loop ends
		f.listener = nil
	}
}
