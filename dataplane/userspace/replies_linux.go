package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/replies"
)

// hasClientSource reports whether this system can use the addresses of clients.
const hasClientSource = true

// mayUseClients reports whether this process may use the addresses of clients.
func mayUseClients() bool {
	var data [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}

// replyPaths maintains the paths of replies to sockets with clients' addresses. A path exists while
// a frontend uses such addresses or a socket has one. The dataplane's lock applying guards the
// fields, except users.
type replyPaths struct {
	mark  uint32
	paths map[inet.Family]*replies.Path
	// keep reports whether sockets with clients' addresses of an earlier process are inherited but
	// not adopted yet.
	keep bool
	// cleared reports whether the objects of an earlier process were removed.
	cleared bool
	// users is the number of open sockets with clients' addresses.
	users atomic.Int64
}

func newReplyPaths(mark uint32) *replyPaths {
	return &replyPaths{mark: mark, paths: map[inet.Family]*replies.Path{}}
}

// opened and closed count a socket with a client's address, if foreign is true.
func (r *replyPaths) opened(foreign bool) {
	if foreign {
		r.users.Add(1)
	}
}

func (r *replyPaths) closed(foreign bool) {
	if foreign {
		r.users.Add(-1)
	}
}

// prepare creates the paths that frontends need, and repairs existing paths. The returned KeyErrors
// hold the frontends that lack their path.
func (r *replyPaths) prepare(batch []dataplane.Change) dataplane.KeyErrors {
	failed := dataplane.KeyErrors{}
	for family := range r.paths {
		_ = r.set(family) // the next check reports an error
	}
	for _, c := range batch {
		if c.New == nil || c.New.Source != balancer.ClientSource {
			continue
		}
		if err := r.set(inet.Of(c.Key.Addr)); err != nil {
			failed[c.Key] = fmt.Errorf(`source = "client": %w`, err)
		}
	}
	if r.keep {
		for _, family := range inet.Families() {
			_ = r.set(family) // an IPv6 path needs a kernel with IPv6
		}
	}
	return failed
}

// set creates the missing parts of a family's path.
func (r *replyPaths) set(family inet.Family) error {
	if r.paths[family] == nil {
		p, err := replies.Open(family, r.mark)
		if err != nil {
			return err
		}
		r.paths[family] = p
	}
	r.cleared = true
	return r.paths[family].Set()
}

// inspect returns differences from the paths, which the next prepare repairs. It removes paths that
// neither a frontend nor a socket needs. wanted reports whether a frontend does.
func (r *replyPaths) inspect(wanted bool) (damage []string, failed error) {
	switch {
	case wanted || r.keep || r.users.Load() > 0:
	case len(r.paths) > 0:
		return nil, r.remove()
	case r.cleared || !mayUseClients():
		return nil, nil
	default:
		r.cleared = true
		_, err := replies.Cleanup(false)
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

// intact returns a description of a difference that a cheap check reveals, or "".
func (r *replyPaths) intact() (string, error) {
	for family, p := range r.paths {
		if found, err := p.Intact(); found != "" || err != nil {
			return fmt.Sprintf("replies to clients' addresses (%s): %s", family, found), err
		}
	}
	return "", nil
}

// remove removes all paths.
func (r *replyPaths) remove() (failed error) {
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

// leave leaves the paths to another process.
func (r *replyPaths) leave() {
	for _, p := range r.paths {
		p.Close()
	}
	clear(r.paths)
}

// sourceFor returns the source address of a client's connection to a backend, or the zero Addr for
// this node's own. The client's address is not possible if the reply would not arrive at this node,
// because client and backend are in a network of this node, or one of them is on this node.
func (c *config) sourceFor(d *Dataplane, client netip.Addr, backend balancer.Key) netip.Addr {
	at := backend.Addr
	if c.Source != balancer.ClientSource || client.Is4() != at.Is4() || client == c.Addr || client == at || !client.IsGlobalUnicast() ||
		at.IsLoopback() || d.own.joins(client, at) || d.chains.at(backend) != nil {
		return netip.Addr{}
	}
	return client
}

// dialFlow opens the socket of a client's flow to a backend at an address. The bool reports whether
// the socket has the client's address.
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
