package userspace

import (
	"context"
	"net"

	"vipd/balancer"
)

// interception brings connections to frontends. Calls of its methods must not overlap. The caller
// holds the dataplane's lock for open and forget, but not for the other methods, which may be slow.
type interception interface {
	// open requests the interception of f according to its definition.
	open(f *frontend) error
	// forget ends the interception of f. The caller closes its sockets.
	forget(f *frontend)
	// commit carries out the requests of the earlier calls.
	commit(ctx context.Context) error
	// lose makes conntrack forget the UDP flows of redirects to closed sockets, because another
	// program may get the ports.
	lose(ctx context.Context, keys map[balancer.Key]bool) error
	// translates reports whether conntrack translates connections to some frontends, and to all.
	translates() (some, all bool)
	// served reports whether connections to f are intercepted, unless f is withdrawn.
	served(f *frontend) bool
	inspect(ctx context.Context) (damage []string, err error)
	intact(ctx context.Context) (reason string, err error)
	// stop shuts the frontends, and sends all new connections to closed ports, which are held.
	// Established connections continue. close ends the interception, and leaves the sockets of
	// bound frontends.
	stop(ctx context.Context, frontends []*frontend) error
	close(ctx context.Context) error
	// shared returns the sockets that several frontends share.
	shared() []*net.TCPListener
	// inherit keeps the interception of an earlier process, which sends UDP to these ports, until
	// the first commit replaces it.
	inherit(ports map[balancer.Key]uint16)
}

// bind is the interception by sockets at VIP:port.
type bind struct{}

func (bind) translates() (some, all bool) { return false, false }

func (bind) open(f *frontend) error {
	if f.conf.Load().Withdrawn { // the VIP is another host's
		f.shut()
		return nil
	}
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

// holdLocked holds the closed port at the VIP. Otherwise another program could get the clients.
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

// lose does nothing, because conntrack does not translate.
func (bind) lose(context.Context, map[balancer.Key]bool) error { return nil }

func (bind) inspect(context.Context) ([]string, error) { return nil, nil }
func (bind) intact(context.Context) (string, error)    { return "", nil }
func (bind) close(context.Context) error               { return nil }
func (bind) shared() []*net.TCPListener                { return nil }
func (bind) inherit(map[balancer.Key]uint16)           {}

func (bind) stop(_ context.Context, frontends []*frontend) error {
	for _, f := range frontends {
		f.shut()
		if !f.d.yielded { // another process of this kind may need the port
			f.refuse()
		}
	}
	return nil
}

// refuse keeps the port at the VIP closed until letGo, as if no backend were active. If it can't be
// silent, it refuses clients.
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
	return c.Withdrawn || f.listener != nil || f.packets != nil || c.closed() && (f.held != nil || !holds)
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
		_ = f.listener.Close() // ends its accept loop
		f.listener = nil
	}
}
