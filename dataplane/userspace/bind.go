package userspace

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// interception is a method of directing connections to frontends. Its methods must not be called
// concurrently. The caller of open and forget holds the dataplane's lock. The caller of any other
// method does not, because these methods may be slow.
type interception interface {
	// open requests the interception of f according to its definition.
	open(f *frontend) error
	// forget ends the interception of f. The caller closes f's sockets.
	forget(f *frontend)
	// commit applies the changes that earlier calls to open and forget requested.
	commit(ctx context.Context) error
	// lose deletes the conntrack entries of UDP flows that lead to closed sockets, because another
	// program may open these ports.
	lose(ctx context.Context, keys map[balancer.Key]bool) error
	// translates returns two flags: whether conntrack translates connections to some frontends, and
	// whether it does so for all frontends.
	translates() (some, all bool)
	// maxPorts returns the maximum number of ports that a port range may have.
	maxPorts() int
	// served reports whether the interception of f works as its definition requires.
	served(f *frontend) bool
	inspect(ctx context.Context) (damage []string, err error)
	intact(ctx context.Context) (reason string, err error)
	// stop closes the frontends' sockets, and sends all new connections to closed ports, which vipd
	// holds. Established connections continue. close ends the interception, but leaves the sockets
	// of bound frontends open.
	stop(ctx context.Context, frontends []*frontend) error
	close(ctx context.Context) error
	shared() []*listener
	// portOf returns the port of f's range to which a redirected client sent a datagram, or 0 if it
	// is unknown. local is the address and port at which the datagram arrived.
	portOf(f *frontend, client, local netip.AddrPort) uint16
	// inherit preserves an earlier process's interception until the first commit replaces it. ports
	// maps each frontend to the port to which its UDP traffic is redirected.
	inherit(ports map[balancer.Key]uint16)
}

// bind is the interception that opens sockets at VIP:port.
type bind struct{}

func (bind) translates() (some, all bool) { return false, false }

// maxBoundPorts is the maximum size of a port range with the bind interception, which needs a
// socket for each port.
const maxBoundPorts = 1024

func (bind) maxPorts() int { return maxBoundPorts }

func (bind) open(f *frontend) error {
	if f.conf.Load().Withdrawn { // routing may lead the VIP's clients to another host
		f.shut()
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bound = true
	f.bindPortsLocked()
	want := f.key.Proto == balancer.UDP && (f.wantPacketsLocked() || f.d.inherited.hasFlows(f.key))
	var failed error
	for _, p := range f.ports {
		if f.key.Proto == balancer.UDP {
			failed = cmp.Or(failed, p.openPacketsLocked(want)) // reporting the first error is enough
		} else {
			failed = cmp.Or(failed, p.openListenerLocked())
		}
	}
	if !want {
		f.flows.each(f.endFlowLocked)
	}
	return failed
}

func (p *portSockets) openListenerLocked() error {
	c := p.f.conf.Load()
	switch {
	case c.closed():
		if ln := p.f.d.inherited.listener(p.key()); ln != nil {
			_ = ln.Close()
		}
		p.shutListenerLocked()
		return p.holdLocked(false)
	case p.listener != nil:
		return p.listener.refit(c)
	}
	p.letGoLocked()
	return p.listen()
}

func (bind) forget(*frontend)             {}
func (bind) commit(context.Context) error { return nil }

// lose does nothing, because no conntrack entry redirects clients to this process.
func (bind) lose(context.Context, map[balancer.Key]bool) error { return nil }

func (bind) inspect(context.Context) ([]string, error) { return nil, nil }
func (bind) intact(context.Context) (string, error)    { return "", nil }
func (bind) close(context.Context) error               { return nil }
func (bind) shared() []*listener                       { return nil }
func (bind) inherit(map[balancer.Key]uint16)           {}

// portOf returns 0, because each port has its own socket, which already identifies the port.
func (bind) portOf(*frontend, netip.AddrPort, netip.AddrPort) uint16 { return 0 }

func (bind) stop(_ context.Context, frontends []*frontend) error {
	for _, f := range frontends {
		f.shut()
		if !f.d.yielded { // another userspace dataplane may need the port
			f.refuse()
		}
	}
	return nil
}

// refuse keeps the port at the VIP closed until releaseHeldPorts is called, as if no backend were
// active. If the definition requires a silent port but this host can't drop packets, clients are
// refused.
func (f *frontend) refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed {
		return
	}
	for _, p := range f.ports {
		err := p.holdLocked(f.conf.Load().NoEndpoints == balancer.DropClients)
		if err != nil {
			err = p.holdLocked(false)
		}
		if err != nil {
			f.d.log.Warn("a port can't be held while connections drain", "frontend", f.key, "err", err)
		}
	}
}

func (f *frontend) releaseHeldPorts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.ports {
		p.letGoLocked()
	}
}

func (bind) served(f *frontend) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conf.Load()
	if c.Withdrawn {
		return true
	}
	return len(f.ports) > 0 && !slices.ContainsFunc(f.ports, func(p *portSockets) bool { return !p.servedLocked(c) })
}

// shut stops accepting connections, and ends all flows.
func (f *frontend) shut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows.each(f.endFlowLocked)
	for _, p := range f.ports {
		p.shutLocked()
	}
}
