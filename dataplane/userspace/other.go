//go:build !linux

package userspace

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"

	"vipd/balancer"
)

// What follows stands for what is Linux's alone, where the proxy runs on another system: it works, and no better than that.

const (
	// dropsClients: without socket filters, clients get a reset.
	dropsClients = false
	// holds: a port that is closed to clients is free for others here.
	holds = false
)

// acceptedKeepAlive has each accepted connection send keepalives.
var acceptedKeepAlive = keepAlive

// filter does nothing here: clients are checked after the accept.
func filter(uintptr, *config) error { return nil }

func canFilter() bool { return false }

func inheritKeepAlive(uintptr) error { return nil }

// anyAddress does nothing here: a socket is bound to an address that the host has.
func anyAddress(uintptr, netip.Addr) error { return nil }

// announce leaves segment sizes to the kernel here.
func announce(uintptr, int) error { return nil }

// look can't tell here. Bytes are counted as they pass.
func look(*net.TCPConn) glance { return glance{quiet: forever} }

// newInterception returns the only one that there is here.
func newInterception(o Options, _ *Dataplane) (interception, string, error) {
	if o.Intercept == Redirect {
		return nil, "", fmt.Errorf("intercepting by redirect: %s has no iptables: use bind", runtime.GOOS)
	}
	return bind{}, "bind", nil
}

// Cleanup has nothing to remove: sockets end with their process.
func Cleanup(context.Context, bool) ([]string, error) { return nil, nil }

// heldPort is for Linux.
type heldPort struct{}

func (d *Dataplane) hold(netip.AddrPort, balancer.Protocol, bool) (*heldPort, error) { return nil, nil }

func (h *heldPort) close() {}

// inheritance is what an earlier process has handed over, and heir the process that takes over. There is neither here.
type (
	inheritance struct{}
	heir        struct{}
)

func (*inheritance) listener(*frontend) *net.TCPListener  { return nil }
func (*inheritance) packets(*frontend, bool) *net.UDPConn { return nil }
func (*inheritance) hasFlows(balancer.Key) bool           { return false }
func (*Dataplane) adoptClients(*frontend)                 {}
func (*Dataplane) adopt(*frontend)                        {}
func (*Dataplane) discard()                               {}
func (*frontend) adoptFlowsLocked()                       {}
func (*conn) handOver() bool                              { return false }

// pipes are none where the kernel can't splice, and mover has nothing to remember.
type (
	pipes struct{}
	mover struct{}
)

func newPipes(*budget) *pipes { return &pipes{} }

func (*pipes) close() {}

// run moves bytes until the end, which is nil, or a failure.
func (p *pump) run() error {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.src.Read(buf)
		if n > 0 {
			written, err := p.dst.Write(buf[:n])
			if p.wrote(written, err); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// localPorts are not known here.
func localPorts() int { return 0 }

// arrival returns what waits for nothing: the read does.
func arrival(*net.UDPConn) func() error { return func() error { return nil } }

func widen(*net.UDPConn) {}

// receive hands each datagram of the backend to use until the socket fails or is closed.
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

// sender returns what sends to a client, or, where to is invalid, to who the socket is connected to.
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
