package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/replies"
)

// hasClientSource is true because Linux can connect from clients' addresses.
const hasClientSource = true

// mayUseClients reports whether this process may connect from clients' addresses.
func mayUseClients() bool {
	var data [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}

// Replies maintains the reply paths, which lead backends' replies to sockets with clients'
// addresses. All dataplanes of a process share the paths, because during a switch one dataplane may
// drain while another already serves. A path exists while a dataplane or a socket needs it. Its
// methods may be called concurrently.
type Replies struct {
	// users is the number of open sockets with clients' addresses.
	users atomic.Int64

	mu    sync.Mutex
	paths map[inet.Family]*replies.Path
	// owners are the dataplanes that need reply paths for a frontend or for inherited sockets.
	owners map[*Dataplane]bool
	// cleared reports whether an earlier process's objects were removed.
	cleared bool
}

// NewReplies returns a Replies that has not created any paths.
func NewReplies() *Replies {
	return &Replies{paths: map[inet.Family]*replies.Path{}, owners: map[*Dataplane]bool{}}
}

// opened and closed count an opened or closed socket, if foreign is true because it has a client's
// address.
func (r *Replies) opened(foreign bool) {
	if foreign {
		r.users.Add(1)
	}
}

func (r *Replies) closed(foreign bool) {
	if foreign {
		r.users.Add(-1)
	}
}

// prepare creates the paths that frontends of d need, and repairs existing paths. keep is true if d
// has inherited sockets with clients' addresses that it has not adopted yet. The returned KeyErrors
// contain the frontends whose path is missing.
func (r *Replies) prepare(d *Dataplane, batch []dataplane.Change, keep bool) dataplane.KeyErrors {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed, results := dataplane.KeyErrors{}, map[inet.Family]error{}
	set := func(family inet.Family) error { // tries each family once
		if _, tried := results[family]; !tried {
			results[family] = r.setLocked(family)
		}
		return results[family]
	}
	for family := range r.paths {
		_ = set(family) // the next check reports an error
	}
	for _, c := range batch {
		if c.New == nil || c.New.Source != balancer.ClientSource {
			continue
		}
		r.owners[d] = true
		if err := set(inet.Of(c.Key.Addr)); err != nil {
			failed[c.Key] = fmt.Errorf(`source = "client": %w`, err)
		}
	}
	if keep {
		r.owners[d] = true
		for _, family := range inet.Families() {
			_ = set(family) // an IPv6 path needs a kernel with IPv6
		}
	}
	return failed
}

// setLocked creates the missing parts of the path in a family.
func (r *Replies) setLocked(family inet.Family) error {
	if r.paths[family] == nil {
		p, err := replies.Open(family)
		if err != nil {
			return err
		}
		r.paths[family] = p
	}
	r.cleared = true
	return r.paths[family].Set()
}

// inspect returns the parts of the paths that are damaged, which the next prepare repairs. needed
// is true if d needs paths. inspect removes paths that neither a dataplane nor a socket needs.
func (r *Replies) inspect(d *Dataplane, needed bool) (damage []string, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.needLocked(d, needed)
	switch {
	case r.neededLocked():
	case len(r.paths) > 0:
		return nil, r.removeLocked()
	case r.cleared || !mayUseClients():
		return nil, nil
	default:
		_, err := replies.Cleanup(false)
		r.cleared = err == nil
		return nil, err
	}
	for family, p := range r.paths {
		found, err := p.Observe()
		if failed = errors.Join(failed, err); found != "" {
			damage = append(damage, fmt.Sprintf("replies to clients' addresses (%s): %s", family, found))
		}
	}
	return damage, failed
}

func (r *Replies) needLocked(d *Dataplane, needed bool) {
	if needed {
		r.owners[d] = true
	} else {
		delete(r.owners, d)
	}
}

func (r *Replies) neededLocked() bool { return len(r.owners) > 0 || r.users.Load() > 0 }

// intact returns a description of damage that a cheap check finds, or "".
func (r *Replies) intact() (damage string, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for family, p := range r.paths {
		found, err := p.Intact()
		if failed = errors.Join(failed, err); found != "" {
			return fmt.Sprintf("replies to clients' addresses (%s): %s", family, found), failed
		}
	}
	return "", failed
}

// release records that the closed dataplane d no longer needs paths. It removes the paths unless
// another dataplane needs them.
func (r *Replies) release(d *Dataplane) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.needLocked(d, false)
	if r.neededLocked() {
		return nil
	}
	return r.removeLocked()
}

func (r *Replies) removeLocked() (failed error) {
	for family, p := range r.paths {
		if err := p.Remove(); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		p.Close()
		delete(r.paths, family)
	}
	return failed
}

// leave leaves the paths in place for another process.
func (r *Replies) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.paths {
		p.Close()
	}
	clear(r.paths)
	clear(r.owners)
}

// sourceFor returns the source address of a client's connection to a backend, or the zero Addr for
// this node's own. The client's address can't be used if the reply would not reach this node,
// because client and backend are in a network of this node, or one of them is on this node.
func (c *config) sourceFor(d *Dataplane, client netip.Addr, backend balancer.Key) netip.Addr {
	at := backend.Addr
	if c.Source != balancer.ClientSource || client.Is4() != at.Is4() || client == c.Addr || client == at || !client.IsGlobalUnicast() ||
		at.IsLoopback() || d.own.joins(client, at) || d.chains.at(backend) != nil {
		return netip.Addr{}
	}
	return client
}

// dialFlow opens the socket of a client's flow to a backend. The bool reports whether the socket
// has the client's address.
func (f *frontend) dialFlow(c *config, client netip.Addr, to netip.AddrPort) (*net.UDPConn, bool, error) {
	if c.Source == balancer.ClientSource {
		f.d.own.has(client) // reads the node's addresses
	}
	from := c.sourceFor(f.d, client, keyAt(to, balancer.UDP))
	if !from.IsValid() {
		socket, err := net.DialUDP(network(f.key), nil, net.UDPAddrFromAddrPort(to))
		return socket, false, err
	}
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	dialer.Control = listenConfig(func(fd uintptr) error {
		if errno := allowForeign(int(fd), from); errno != 0 {
			return errno
		}
		return nil
	}).Control
	socket, err := dialer.DialContext(context.Background(), network(f.key), to.String())
	if err != nil {
		return nil, false, err
	}
	f.d.replies.opened(true)
	return socket.(*net.UDPConn), true, nil
}
