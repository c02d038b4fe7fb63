//go:build !linux

package userspace

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"vipd/balancer"
	"vipd/dataplane"
)

// These constants and functions replace Linux features on other systems.

const (
	// dropsClients is false because, without socket filters, clients get a reset.
	dropsClients = false
	// holds is false because these systems can't hold a closed port.
	holds = false
	// hasClientSource is false because only Linux can connect from clients' addresses.
	hasClientSource = false
	// maxPorts is the limit of the bind interception, because there are no redirects.
	maxPorts = maxBoundPorts
)

// filter does nothing, because clients are checked after the accept.
func filter(uintptr, *config) error { return nil }

func canFilter() bool { return false }

// inheritOptions does nothing, because package net sets the options of each connection.
func inheritOptions(uintptr) error { return nil }

// anyAddress does nothing, so a socket can be bound only to an existing address of the host.
func anyAddress(uintptr, netip.Addr) error { return nil }

// announce does nothing, so the kernel selects segment sizes.
func announce(uintptr, int) error { return nil }

// newInterception returns the bind interception, the only one on these systems.
func newInterception(o Options, _ *Dataplane) (interception, string, error) {
	if o.Intercept == Redirect {
		return nil, "", fmt.Errorf("intercepting by redirect: %s has no iptables: use bind", runtime.GOOS)
	}
	return bind{}, "bind", nil
}

// Cleanup does nothing, because sockets are closed when their process exits.
func Cleanup(context.Context, bool) ([]string, error) { return nil, nil }

// heldPort is a placeholder, because only Linux can hold closed ports.
type heldPort struct{}

func (d *Dataplane) hold(netip.AddrPort, balancer.Protocol, bool) (*heldPort, error) { return nil, nil }

func (h *heldPort) close() {}

// inheritance and successor are placeholders, because these systems have no handover.
type (
	inheritance struct{}
	successor   struct{}
)

func (*inheritance) listener(balancer.Key) *net.TCPListener  { return nil }
func (*inheritance) packets(balancer.Key, bool) *net.UDPConn { return nil }
func (*inheritance) hasFlows(balancer.Key) bool              { return false }
func (*Dataplane) adoptClients(*frontend)                    {}
func (*Dataplane) adopt(*frontend)                           {}
func (*Dataplane) discard()                                  {}
func (*portSockets) adoptFlowsLocked()                       {}

// Replies is a placeholder, because only Linux can connect from clients' addresses.
type Replies struct{}

// NewReplies returns the placeholder.
func NewReplies() *Replies { return nil }

func mayUseClients() bool                                                         { return false }
func (*Replies) prepare(*Dataplane, []dataplane.Change, bool) dataplane.KeyErrors { return nil }
func (*Replies) inspect(*Dataplane, bool) ([]string, error)                       { return nil, nil }
func (*Replies) intact() (string, error)                                          { return "", nil }
func (*Replies) closed(bool)                                                      {}
func (*Replies) release(*Dataplane) error                                         { return nil }

func (f *frontend) dialFlow(_ *config, _ netip.Addr, to netip.AddrPort) (*net.UDPConn, bool, error) {
	socket, err := net.DialUDP(network(f.key), nil, net.UDPAddrFromAddrPort(to))
	return socket, false, err
}

// localPorts returns 0 because the number is unknown.
func localPorts() int { return 0 }

// arrival returns a function that does not wait, because the following read waits.
func arrival(*net.UDPConn) func() error { return func() error { return nil } }

func widen(*net.UDPConn) {}

func (x *flow) receive(use func([]byte)) error {
	buf := make([]byte, datagram)
	for {
		n, err := x.socket.Read(buf)
		switch {
		case err == nil:
			use(buf[:n])
		case !passing(err):
			return err
		}
	}
}

// sender returns a function that sends to a client, or to the socket's peer if to is invalid.
func (w way) sender(to netip.AddrPort) func([]byte) error {
	return func(b []byte) (err error) {
		if to.IsValid() {
			_, err = w.socket.WriteToUDPAddrPort(b, to)
		} else {
			_, err = w.socket.Write(b)
		}
		return err
	}
}
