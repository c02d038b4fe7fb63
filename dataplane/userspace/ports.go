package userspace

import (
	"net"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// portSockets holds the sockets at a port of a frontend.
type portSockets struct {
	f *frontend
	// at is the VIP and the port. The port is 0 if a redirect of a range leads to the socket.
	at netip.AddrPort

	// The frontend's mu guards the fields below. listener and packets are the sockets; nil means
	// that none is open. held keeps the port while there are none.
	listener *listener
	packets  *net.UDPConn
	held     *heldPort
}

// opens reports whether the frontend gets the connections to a port.
func (c *config) opens(port uint16) bool {
	return !c.Key.Port.IsRange() || slices.ContainsFunc(c.Open, func(p balancer.PortRange) bool { return p.Contains(port) })
}

// bindPortsLocked makes ports the ports at which a bound frontend has sockets.
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

// closeNarrowerLocked closes the sockets and ends the flows at ports that belong to a narrower
// frontend now.
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

// redirectedLocked returns the socket of a frontend to which a redirect leads.
func (f *frontend) redirectedLocked() *portSockets {
	if len(f.ports) == 0 {
		f.ports = []*portSockets{{f: f, at: netip.AddrPortFrom(f.key.Addr, 0)}}
	}
	return f.ports[0]
}

// receivesLocked reports whether a UDP socket is open.
func (f *frontend) receivesLocked() bool {
	return slices.ContainsFunc(f.ports, func(p *portSockets) bool { return p.packets != nil })
}

// shutLocked closes the sockets.
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

// holdLocked holds the closed port at the VIP. Otherwise another program could get the clients.
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

// key returns the key of the socket's address and port.
func (p *portSockets) key() balancer.Key { return keyAt(p.at, p.f.key.Proto) }

// servedLocked reports whether clients reach the socket, or find the port closed as c requests.
func (p *portSockets) servedLocked(c *config) bool {
	return p.listener != nil || p.packets != nil || c.closed() && (p.held != nil || !holds)
}

// target returns the address to which clients of a port are led. backend has the first port of a
// range.
func (f *frontend) target(backend netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(backend.Addr(), backend.Port()+port-f.key.Port.First())
}

// refusesPort reports whether err is a backend's answer at a port of a range. It does not mean that
// the backend is down: few of its ports may be in use.
func (f *frontend) refusesPort(err error) bool { return f.key.Port.IsRange() && isRefusal(err) }
