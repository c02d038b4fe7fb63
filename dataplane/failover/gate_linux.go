package failover

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nft"
)

// These are the defaults of GateOptions.
const (
	defaultTable   = "vipd-owner"
	defaultTimeout = 250 * time.Millisecond
)

// beatPort is the port of 127.0.0.1 to which refreshes are sent. No program needs to listen on it,
// because the gate's rules process and drop the packets.
const beatPort = 9899

// GateOptions configures a Gate. Zero values select the defaults.
type GateOptions struct {
	Table   string
	Timeout time.Duration
}

// Gate lets frames to and from VIPs pass devices only while it is open. Since Linux 6.9, other
// programs can't change its table while this process is running, and "nft flush ruleset" skips it.
// On earlier kernels, Intact detects such changes. Only Refresh may be called concurrently with
// other methods.
type Gate struct {
	o     GateOptions
	table nft.Table
	conn  *nft.Conn
	// beat is the socket that sends refreshes, and to is their destination.
	beat  int
	to    *unix.SockaddrInet4
	token atomic.Pointer[[8]byte] // identifies the installed table, which ignores refreshes with another token

	// shared reports whether this kernel permits other programs to change the table.
	shared  bool
	devices []string
	vips    map[netip.Addr]bool
	made    uint32 // generation of nf_tables at the last successful check, or 0 if it is no longer valid
}

// NewGate opens a gate's sockets. It does not change the kernel's rules.
func NewGate(o GateOptions) (*Gate, error) {
	o.Table, o.Timeout = cmp.Or(o.Table, defaultTable), cmp.Or(o.Timeout, defaultTimeout)
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("opening the gate of owned VIPs: %w", err)
	}
	beat, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the gate of owned VIPs: %w", err), conn.Close())
	}
	g := &Gate{
		o: o, table: nft.Table{Family: nft.Netdev, Name: o.Table}, conn: conn, beat: beat,
		to: &unix.SockaddrInet4{Port: beatPort, Addr: [4]byte{127, 0, 0, 1}}, vips: map[netip.Addr]bool{},
	}
	g.token.Store(new([8]byte))
	return g, nil
}

// Close closes the sockets. The table remains, and the gate closes after its timeout.
func (g *Gate) Close() error { return errors.Join(g.conn.Close(), unix.Close(g.beat)) }

// These are the sets and chains of the gate's table.
const (
	gateChain = "gate"
	beatChain = "beat"
)

func aliveSet() *nft.Set {
	// A deleted element occupies a slot until the kernel's garbage collection, so a size of 4 was
	// too small.
	return &nft.Set{Name: "alive", Key: nft.Mark, Timed: true, Dynamic: true, Size: 64}
}

func vipSet(f nft.TableFamily) *nft.Set {
	name := "vips4"
	if f == nft.IPv6 {
		name = "vips6"
	}
	return &nft.Set{Name: name, Key: nft.As{Family: f, Field: nft.Daddr}}
}

// alive returns the only element of the set "alive".
func (g *Gate) alive() nft.Elem { return nft.Elem{Key: nft.Bytes{}.Number(0), Timeout: g.o.Timeout} }

// Install installs a closed gate for all VIPs that this host may ever own. Its chains precede all
// other chains of the devices. It replaces the gate of an earlier process, whose refreshes then
// have no effect.
func (g *Gate) Install(devices []string, vips []netip.Addr) error {
	token := new([8]byte)
	_, _ = rand.Read(token[:]) // never fails
	g.token.Store(token)
	g.devices = slices.Clone(devices)
	g.vips = map[netip.Addr]bool{}
	g.made = 0
	for _, a := range vips {
		g.vips[a] = true
	}
	err := g.conn.Commit(g.install())
	if errors.Is(err, unix.EOPNOTSUPP) && !g.shared {
		g.shared = true // before Linux 6.9, a table can't be protected
		err = g.conn.Commit(g.install())
	}
	if err != nil {
		return fmt.Errorf("installing the gate of owned VIPs: %w", err)
	}
	return nil
}

func (g *Gate) install() *nft.Tx {
	tx, x := &nft.Tx{}, g.table
	tx.TouchTable(x)
	tx.DeleteTable(x)
	if g.shared {
		tx.AddTable(x)
	} else {
		tx.ClaimTable(x)
	}
	alive := aliveSet()
	vips4 := vipSet(nft.IPv4)
	vips6 := vipSet(nft.IPv6)
	for _, s := range []*nft.Set{alive, vips4, vips6} {
		tx.AddSet(x, s)
	}
	rule := func(chain string, do ...nft.Stmt) { tx.AddRule(x, chain, nft.Rule{Do: do}) }
	tx.AddChain(x, &nft.Chain{Name: gateChain})
	isOpen := nft.In{Of: nft.Constant{}, Set: alive}
	rule(gateChain, isOpen, nft.Return)
	rule(gateChain, nft.Drop)

	tx.AddChain(x, &nft.Chain{Name: beatChain, Hook: hook(nft.Egress, "lo")})
	rule(beatChain, nft.EtherIPv4, nft.Is{Field: nft.L4proto, Value: unix.IPPROTO_UDP},
		nft.Equal{Of: nft.Raw{Header: nft.NetworkHeader, Offset: 16, Size: 4}, Value: g.to.Addr[:]},
		nft.Equal{Of: nft.Raw{Header: nft.TransportHeader, Offset: 2, Size: 2}, Value: binary.BigEndian.AppendUint16(nil, beatPort)},
		nft.Equal{Of: nft.Raw{Header: nft.TransportHeader, Offset: 8, Size: 8}, Value: g.token.Load()[:]},
		isOpen, nft.Update{Map: alive, Key: nft.Constant{}, Timeout: g.o.Timeout}, nft.Drop)

	for _, device := range g.devices {
		g.addDevice(tx, device)
	}
	for _, s := range []*nft.Set{vips4, vips6} {
		tx.Add(x, s, elements(slices.SortedFunc(maps.Keys(g.vips), netip.Addr.Compare), s == vips4)...)
	}
	return tx
}

// chainsOn returns the names of the chains for a device's incoming and outgoing frames.
func chainsOn(device string) (in, out string) { return "in-" + device, "out-" + device }

func (g *Gate) addDevice(tx *nft.Tx, device string) {
	in, out := chainsOn(device)
	tx.AddChain(g.table, &nft.Chain{Name: in, Hook: hook(nft.Ingress, device)})
	gate(tx, g.table, in, nft.Daddr, 24, 135) // matches the target of ARP packets, and neighbor solicitations
	tx.AddChain(g.table, &nft.Chain{Name: out, Hook: hook(nft.Egress, device)})
	gate(tx, g.table, out, nft.Saddr, 14, 136) // matches the sender of ARP packets, and neighbor advertisements
}

// Follow changes the gate's devices. An open gate stays open, and a closed gate stays closed. No
// VIP may be bound on a removed device.
func (g *Gate) Follow(devices []string) error {
	found, err := g.conn.Chains(g.table)
	if err != nil {
		return fmt.Errorf("reading the gate of owned VIPs: %w", err)
	}
	var tx nft.Tx
	for _, device := range g.devices {
		if slices.Contains(devices, device) {
			continue
		}
		in, out := chainsOn(device)
		for _, c := range found { // the kernel has removed the chains of a missing device
			if c.Name == in || c.Name == out {
				tx.FlushChain(g.table, c.Name)
				tx.DeleteChain(g.table, c.Name)
			}
		}
	}
	for _, device := range devices {
		if !slices.Contains(g.devices, device) {
			g.addDevice(&tx, device)
		}
	}
	if err := g.conn.Commit(&tx); err != nil {
		return fmt.Errorf("changing the gate's devices: %w", err)
	}
	g.devices, g.made = slices.Clone(devices), 0
	return nil
}

func hook(point nft.Point, device string) *nft.Hook {
	const first = -500
	return &nft.Hook{Type: nft.Filter, Point: point, Priority: first, Device: device}
}

// gate adds rules that send a chain's VIP frames through the gate: packets with a VIP in field, ARP
// packets with a VIP at offset arp, and NDP messages of type ndp about a VIP. Packets for a VIP
// that is not bound here are dropped even while the gate is open. Otherwise this host's NAT rules
// would translate packets that a client sends to the last owner.
func gate(tx *nft.Tx, x nft.Table, chain string, field nft.Field, arp uint32, ndp byte) {
	vips4, vips6 := vipSet(nft.IPv4), vipSet(nft.IPv6)
	absent := nft.NotLocal{Source: field == nft.Saddr}
	tx.AddRule(x, chain, nft.Rule{Do: []nft.Stmt{nft.EtherIPv4, nft.In{Of: nft.As{Family: nft.IPv4, Field: field}, Set: vips4}, absent, nft.Drop}})
	tx.AddRule(x, chain, nft.Rule{Do: []nft.Stmt{nft.EtherIPv6, nft.In{Of: nft.As{Family: nft.IPv6, Field: field}, Set: vips6}, absent, nft.Drop}})
	for _, do := range [][]nft.Stmt{
		{nft.EtherIPv4, nft.In{Of: nft.As{Family: nft.IPv4, Field: field}, Set: vips4}},
		{nft.EtherARP, nft.In{Of: nft.Raw{Header: nft.NetworkHeader, Offset: arp, Size: 4}, Set: vips4}},
		{nft.EtherIPv6, nft.In{Of: nft.As{Family: nft.IPv6, Field: field}, Set: vips6}},
		{
			nft.EtherIPv6, nft.Is{Field: nft.L4proto, Value: unix.IPPROTO_ICMPV6},
			nft.Equal{Of: nft.Raw{Header: nft.TransportHeader, Size: 1}, Value: []byte{ndp}},
			nft.In{Of: nft.Raw{Header: nft.TransportHeader, Offset: 8, Size: 16}, Set: vips6},
		},
	} {
		tx.AddRule(x, chain, nft.Rule{Do: append(do, nft.Jump(gateChain))})
	}
}

// elements returns the set elements for the addresses in one family.
func elements(vips []netip.Addr, v4 bool) (all []nft.Elem) {
	for _, a := range vips {
		if a.Is4() == v4 {
			all = append(all, nft.Elem{Key: nft.Bytes{}.Addr(a)})
		}
	}
	return all
}

// Cover changes the gate's VIPs. They must include every VIP that is or may be bound on this host.
func (g *Gate) Cover(vips []netip.Addr) error {
	want := map[netip.Addr]bool{}
	for _, a := range vips {
		want[a] = true
	}
	var tx nft.Tx
	for _, f := range []nft.TableFamily{nft.IPv4, nft.IPv6} {
		var add, drop []netip.Addr
		for a := range want {
			if !g.vips[a] {
				add = append(add, a)
			}
		}
		for a := range g.vips {
			if !want[a] {
				drop = append(drop, a)
			}
		}
		tx.Add(g.table, vipSet(f), elements(add, f == nft.IPv4)...)
		tx.Delete(g.table, vipSet(f), elements(drop, f == nft.IPv4)...)
	}
	if err := g.conn.Commit(&tx); err != nil {
		return fmt.Errorf("changing the gate's VIPs: %w", err)
	}
	g.vips = want
	return nil
}

// Open opens the gate for its timeout. No owned VIP may be bound at that time, because a caller
// that was stopped may call Open too late.
func (g *Gate) Open() error {
	var tx nft.Tx
	tx.FlushSet(g.table, aliveSet())
	tx.Add(g.table, aliveSet(), g.alive())
	if err := g.conn.Commit(&tx); err != nil {
		return fmt.Errorf("opening the gate of owned VIPs: %w", err)
	}
	return nil
}

// Refresh extends the timeout of an open gate. A closed gate stays closed. Refresh does not need
// the locks for changing rules, and returns within microseconds.
func (g *Gate) Refresh() error {
	return unix.Sendto(g.beat, g.token.Load()[:], unix.MSG_DONTWAIT, g.to)
}

// Intact describes the first part of the gate that is missing or was changed since Install and
// Cover, or returns "". If no rules have changed since the last check, it needs only one request.
func (g *Gate) Intact() (reason string, err error) {
	now, err := g.conn.Generation()
	if err != nil || now == g.made && g.made != 0 {
		return "", err
	}
	chains, err := g.conn.Chains(g.table)
	if err != nil {
		return "", err
	}
	rules, err := g.conn.Rules(g.table, "")
	if err != nil {
		return "", err
	}
	exists := map[string]bool{}
	for _, c := range chains {
		exists[c.Name] = true
	}
	for _, device := range g.devices {
		if in, out := chainsOn(device); !exists[in] || !exists[out] {
			return fmt.Sprintf("the gate of owned VIPs is missing from %s", device), nil
		}
	}
	vips := 0
	for _, f := range []nft.TableFamily{nft.IPv4, nft.IPv6} {
		in, err := g.conn.Elements(g.table, vipSet(f).Name)
		if err != nil {
			return "", err
		}
		vips += len(in)
	}
	if !exists[gateChain] || !exists[beatChain] || len(rules) != 3+12*len(g.devices) || vips != len(g.vips) {
		return fmt.Sprintf("the table netdev %s was changed", g.o.Table), nil
	}
	g.made = now
	return "", nil
}

// listed returns the VIPs in the installed table, which may be an earlier process's table.
func (g *Gate) listed() (vips []netip.Addr, err error) {
	for _, f := range []nft.TableFamily{nft.IPv4, nft.IPv6} {
		all, err := g.conn.Elements(g.table, vipSet(f).Name)
		if err != nil {
			return nil, fmt.Errorf("reading the gate's VIPs: %w", err)
		}
		for _, e := range all {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				vips = append(vips, a)
			}
		}
	}
	return vips, nil
}

// Remove removes the gate.
func (g *Gate) Remove() error {
	var tx nft.Tx
	tx.TouchTable(g.table)
	tx.DeleteTable(g.table)
	if err := g.conn.Commit(&tx); err != nil {
		return fmt.Errorf("removing the gate of owned VIPs: %w", err)
	}
	return nil
}
