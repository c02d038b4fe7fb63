package userspace

import (
	"net"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// portSockets holds the sockets for a port of a frontend.
type portSockets struct {
	f *frontend
	// at is the VIP and the port. The port is 0 if the socket serves a redirected range.
	at netip.AddrPort

	// The frontend's mu guards the fields below. listener or packets is the open socket. If both
	// are nil, held may hold the closed port.
	listener *listener
	packets  *net.UDPConn
	held     *heldPort
}

// opens reports whether connections to a port belong to this frontend and not to a narrower one.
func (c *config) opens(port uint16) bool {
	return !c.Key.Port.IsRange() || slices.ContainsFunc(c.Open, func(p balancer.PortRange) bool { return p.Contains(port) })
}

// bindPortsLocked adds an entry to f.ports for each port for which a bound frontend needs a socket.
func (f *frontend) bindPortsLocked() {
	if !f.key.Port.IsRange() {
		return
	}
	have := map[uint16]bool{}
	for _, p := range f.ports {
		have[p.at.Port()] = true
	}
	for _, open := range f.conf.Load().Open {
		for port := int(open.First()); port <= int(open.Last()); port++ {
			if !have[uint16(port)] {
				f.ports = append(f.ports, &portSockets{f: f, at: netip.AddrPortFrom(f.key.Addr, uint16(port))})
			}
		}
	}
}

// closeNarrowerLocked closes the sockets and ends the flows on ports that now belong to a narrower
// frontend.
func (f *frontend) closeNarrowerLocked(c *config) {
	if !c.Key.Port.IsRange() {
		return
	}
	f.flows.each(func(x *flow) {
		if !c.opens(x.port) {
			f.endFlowLocked(x)
		}
	})
	f.ports = slices.DeleteFunc(f.ports, func(p *portSockets) bool {
		if p.at.Port() == 0 || c.opens(p.at.Port()) {
			return false
		}
		p.shutLocked()
		return true
	})
}

// redirectedLocked returns the sockets to which f's redirect leads.
func (f *frontend) redirectedLocked() *portSockets {
	if len(f.ports) == 0 {
		f.ports = []*portSockets{{f: f, at: netip.AddrPortFrom(f.key.Addr, 0)}}
	}
	return f.ports[0]
}

func (f *frontend) receivesLocked() bool {
	return slices.ContainsFunc(f.ports, func(p *portSockets) bool { return p.packets != nil })
}

func (p *portSockets) shutLocked() {
	p.shutListenerLocked()
	p.shutPacketsLocked()
	p.letGoLocked()
}

func (p *portSockets) shutListenerLocked() {
	if p.listener != nil {
		p.listener.close()
		p.listener = nil
	}
}

func (p *portSockets) shutPacketsLocked() {
	if p.packets != nil {
		_ = p.packets.Close() // ends its read loop
		p.packets = nil
	}
}

// holdLocked keeps the port at the VIP closed. Otherwise, a program that opens the port would
// receive the VIP's clients.
func (p *portSockets) holdLocked(silent bool) error {
	if p.held != nil {
		return nil
	}
	held, err := p.f.d.hold(p.at, p.f.key.Proto, silent)
	if err != nil {
		return explainListen(p.key(), err)
	}
	p.held = held
	return nil
}

func (p *portSockets) letGoLocked() {
	p.held.close()
	p.held = nil
}

func (p *portSockets) key() balancer.Key { return keyAt(p.at, p.f.key.Proto) }

// servedLocked reports whether the socket serves clients, or the port is closed as c requires.
func (p *portSockets) servedLocked(c *config) bool {
	return p.listener != nil || p.packets != nil || c.closed() && (p.held != nil || !holds)
}

// target returns the backend address and port that serves the clients of port. For a port range,
// the argument backend contains the port that corresponds to the first port of the range.
func (f *frontend) target(backend netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(backend.Addr(), backend.Port()+port-f.key.Port.First())
}

// refusesPort reports whether err means that a backend refuses one port of a range. This does not
// mean that the backend is down, because it may use only some of the ports.
func (f *frontend) refusesPort(err error) bool { return f.key.Port.IsRange() && isRefusal(err) }
