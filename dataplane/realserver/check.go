package realserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"vipd/dataplane/host"
)

// Patience is how long a check usually waits for an answer.
const Patience = time.Second

// Path is a path to a VIP through one of its real servers.
type Path struct {
	VIP netip.AddrPort
	// Endpoint is the server's own address.
	Endpoint netip.Addr
	// TCP reports whether the check can request a connection from the server.
	TCP bool
}

// Finding is a result of a check.
type Finding struct {
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// Gateway is this host, as its real servers see it.
type Gateway struct {
	// Own returns this host's address on a device, IPv4 if is4 is true and otherwise IPv6. It
	// returns an invalid address if there is none.
	Own func(device string, is4 bool) netip.Addr
	// Holds reports whether this host has the VIP now. If not, another gateway may answer for it.
	Holds func(vip netip.Addr) bool
	// Claimed returns the MAC address of a host that answers for a VIP on a device, or nil.
	Claimed func(device string, vip netip.Addr) (net.HardwareAddr, error)
}

// Check tests a path. A finding that is not OK includes advice.
func (g *Gateway) Check(ctx context.Context, p Path) (found []Finding) {
	add := func(ok bool, format string, args ...any) {
		found = append(found, Finding{OK: ok, Text: fmt.Sprintf(format, args...)})
	}
	n, err := Resolve(ctx, p.Endpoint)
	mac, macErr := net.ParseMAC(n.MAC)
	vip := p.VIP.Addr()
	switch {
	case err != nil:
		add(false, "%v", err)
		return found
	case n.Device == "":
		add(false, "%s is not on a link of this host, so direct routing can't reach it: use an address in one of this host's networks", p.Endpoint)
		return found
	case macErr != nil:
		add(false, "it does not answer %s on %s: check that it is running, and check its address, its VLAN and the link", n.Protocol(), n.Device)
		return found
	}
	switch other, err := g.Claimed(n.Device, vip); {
	case !g.Holds(vip):
		add(true, "this host does not hold %s now, so it is normal if the holder answers %s requests for it", vip, n.Protocol())
	case err != nil:
		add(false, "can't find out whether another host on %s answers %s requests for %s: %v", n.Device, n.Protocol(), vip, err)
	case other == nil:
		add(true, "no host on %s answers %s requests for %s", n.Device, n.Protocol(), vip)
	case other.String() == mac.String():
		add(false, "it answers %s requests for %s on %s, so clients there might bypass this gateway: run \"vipctl real-server %s\" on it", n.Protocol(), vip, n.Device, vip)
	default:
		add(false, "another host (%s) answers %s requests for %s on %s, so clients there might bypass this gateway: remove the address there, or run \"vipctl real-server %s\" if it is a real server",
			other, n.Protocol(), vip, n.Device, vip)
	}
	own := g.Own(n.Device, vip.Is4())
	switch {
	case !p.TCP:
		add(true, "whether it accepts packets to %s is not tested, because only TCP can be tested", p.VIP)
		return found
	case !own.IsValid():
		add(false, "this host needs an address on %s of the same IP version as %s, because otherwise the server can't answer the test", n.Device, vip)
		return found
	}
	return append(found, g.knock(ctx, p, Target{Device: n.Device, MAC: mac, VIP: p.VIP}, own)...)
}

// knock requests connections from the server, first from this host's address, and then from an
// address in an unknown network.
func (g *Gateway) knock(ctx context.Context, p Path, t Target, own netip.Addr) (found []Finding) {
	answer, err := Knock(ctx, t, own, Patience)
	switch {
	case err != nil:
		return append(found, Finding{Text: err.Error()})
	case answer == Refused:
		return append(found, Finding{Text: fmt.Sprintf("it has %s, but refuses connections to port %d: make its program listen on the VIP, or on all addresses", p.VIP.Addr(), p.VIP.Port())})
	case answer == Silence:
		return append(found, Finding{Text: fmt.Sprintf("it does not answer a connection to %s from %s: run \"vipctl real-server %s\" on it, and check its firewall and rp_filter", p.VIP, own, p.VIP.Addr())})
	}
	found = append(found, Finding{OK: true, Text: fmt.Sprintf("it accepts connections to %s", p.VIP)})
	switch answer, err = Knock(ctx, t, DocumentationAddr(own.Is4()), Patience); {
	case err != nil:
		return append(found, Finding{Text: err.Error()})
	case answer != Silence:
		loss := "which has to forward them needlessly"
		if own.Is4() {
			loss = "which drops packets from its own VIP"
		}
		return append(found, Finding{Text: "its answers to clients in other networks come back to this host, " + loss + ": give the server a default route through another router"})
	}
	return append(found, Finding{OK: true, Text: "its answers to clients in other networks do not go through this host"})
}

// Resolve returns the neighbor that has an address. If its MAC address is unknown, Resolve makes
// the kernel request it.
func Resolve(ctx context.Context, a netip.Addr) (host.Neighbor, error) {
	deadline := time.Now().Add(Patience)
	for {
		n, err := host.NeighborAt(a)
		if err != nil || n.Device == "" || n.MAC != "" || time.Now().After(deadline) {
			return n, err
		}
		if c, err := (&net.Dialer{}).DialContext(ctx, "udp", netip.AddrPortFrom(a, 9).String()); err == nil {
			_, _ = c.Write([]byte{0}) // the kernel resolves the address before it sends
			_ = c.Close()
		}
		select {
		case <-ctx.Done():
			return n, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
