package nft

import "fmt"

// Raw is a range of header bytes, for tables in the family netdev, which has no protocol fields.
// Examples are an address in an ARP packet, and the target of a neighbor solicitation.
type Raw struct {
	Header Header
	// Offset and Size are in bytes.
	Offset, Size uint32
}

// Header is the header to which a Raw's offset refers.
type Header uint32

// These are the headers. The network header of an ARP frame is the ARP packet. The link header
// includes a VLAN tag that the device has removed.
const (
	LinkHeader      Header = 0
	NetworkHeader   Header = 1
	TransportHeader Header = 2
)

func (r Raw) text(TableFamily) string {
	name := [...]string{"ll", "nh", "th"}[r.Header]
	return fmt.Sprintf("@%s,%d,%d", name, r.Offset*8, r.Size*8)
}

func (r Raw) kind(TableFamily) kind {
	switch r.Size {
	case 4:
		return kind{id: typeIPv4, size: 4, order: wire}
	case 16:
		return kind{id: typeIPv6, size: 16, order: wire}
	}
	return kind{id: typeInteger, size: int(r.Size), order: wire}
}

func (r Raw) load(m *message, _ TableFamily, reg, _ int) {
	m.expr(listElem, "payload", func() {
		m.Wire32(1, register(reg))
		m.Wire32(2, uint32(r.Header))
		m.Wire32(3, r.Offset)
		m.Wire32(4, r.Size)
	})
}

func (Raw) typeof(*userdata, TableFamily) { panic("nft: no set here is declared by bytes of a header") }

// As is a field of IPv4 or IPv6 in a table in the family netdev. The rule must match the frame's
// protocol first.
type As struct {
	Family TableFamily
	Field  Field
}

func (a As) text(TableFamily) string { return a.Field.text(a.Family) }

func (a As) kind(TableFamily) kind { return a.Field.kind(a.Family) }

func (a As) load(m *message, _ TableFamily, reg, temp int) { a.Field.load(m, a.Family, reg, temp) }

func (a As) typeof(u *userdata, _ TableFamily) { a.Field.typeof(u, a.Family) }

// Equal matches a range of header bytes with a value.
type Equal struct {
	Of    Raw
	Value []byte
}

func (s Equal) text(f TableFamily) string { return fmt.Sprintf("%s 0x%x", s.Of.text(f), s.Value) }

func (s Equal) write(m *message, f TableFamily) {
	s.Of.load(m, f, first, spare)
	compare(m, true, s.Value)
}

// AnyBit matches a range of header bytes in which any bit of the mask is set.
type AnyBit struct {
	Of   Raw
	Mask []byte
}

func (s AnyBit) text(f TableFamily) string {
	return fmt.Sprintf("%s & 0x%x != 0", s.Of.text(f), s.Mask)
}

func (s AnyBit) write(m *message, f TableFamily) {
	s.Of.load(m, f, first, spare)
	none := make([]byte, len(s.Mask))
	m.expr(listElem, "bitwise", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, register(first))
		m.Wire32(3, uint32(len(s.Mask)))
		m.value(4, s.Mask)
		m.value(5, none)
	})
	compare(m, false, none)
}

// Fwd sends the packet through a device to the neighbor whose address a map contains. It is for the
// family netdev, and decrements the packet's hop limit. The packet skips all other rules and
// routing.
type Fwd struct {
	Family TableFamily // of the neighbor's address
	To     Lookup
	// Name and Index identify the device.
	Name  string
	Index uint32
}

func (s Fwd) text(f TableFamily) string {
	return fmt.Sprintf("fwd %s to %s device %q", s.Family, s.To.text(f), s.Name)
}

func (s Fwd) write(m *message, f TableFamily) {
	s.To.load(m, f, first, spare)
	m.expr(listElem, "immediate", func() {
		m.Wire32(1, register(spare))
		m.value(2, Bytes{}.Number(s.Index))
	})
	m.expr(listElem, "fwd", func() {
		m.Wire32(1, register(spare))  // NFTA_FWD_SREG_DEV
		m.Wire32(2, register(first))  // NFTA_FWD_SREG_ADDR
		m.Wire32(3, uint32(s.Family)) // NFTA_FWD_NFPROTO
	})
}

// NotLocal matches packets whose destination or source is not an address of this host. In the
// family netdev, it needs CONFIG_NFT_FIB_NETDEV.
type NotLocal struct{ Source bool }

func (s NotLocal) text(TableFamily) string {
	if s.Source {
		return "fib saddr type != local"
	}
	return "fib daddr type != local"
}

func (s NotLocal) write(m *message, _ TableFamily) {
	const local = 2 // RTN_LOCAL
	which := uint32(2)
	if s.Source {
		which = 1
	}
	m.expr(listElem, "fib", func() {
		m.Wire32(1, register(first)) // NFTA_FIB_DREG
		m.Wire32(2, 3)               // NFTA_FIB_RESULT: NFT_FIB_RESULT_ADDRTYPE
		m.Wire32(3, which)           // NFTA_FIB_FLAGS: NFTA_FIB_F_SADDR, NFTA_FIB_F_DADDR
	})
	compare(m, false, Bytes{}.Number(local))
}

// GoesBack matches packets whose destination this host reaches through their incoming interface. It
// never matches packets to the host's own addresses. It is for prerouting.
type GoesBack struct{}

func (GoesBack) text(TableFamily) string { return "fib daddr . iif oif != 0" }

func (GoesBack) write(m *message, _ TableFamily) {
	m.expr(listElem, "fib", func() {
		m.Wire32(1, register(first)) // NFTA_FIB_DREG
		m.Wire32(2, 1)               // NFTA_FIB_RESULT: NFT_FIB_RESULT_OIF
		m.Wire32(3, 2|8)             // NFTA_FIB_FLAGS: NFTA_FIB_F_DADDR, NFTA_FIB_F_IIF
	})
	compare(m, false, Bytes{}.Number(0))
}

// EtherType matches the protocol of a frame.
type EtherType uint16

// These are the protocols.
const (
	EtherIPv4 EtherType = 0x0800
	EtherARP  EtherType = 0x0806
	EtherIPv6 EtherType = 0x86dd
)

func (s EtherType) text(TableFamily) string { return fmt.Sprintf("meta protocol 0x%04x", uint16(s)) }

func (s EtherType) write(m *message, _ TableFamily) {
	m.expr(listElem, "meta", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, 1) // NFT_META_PROTOCOL
	})
	compare(m, true, []byte{byte(s >> 8), byte(s)})
}

// Constant is the constant key 0. nft prints it as a mark ANDed with 0.
type Constant struct{}

func (Constant) text(TableFamily) string { return "meta mark & 0x00000000" }

func (Constant) kind(f TableFamily) kind { return Mark.kind(f) }

func (Constant) load(m *message, f TableFamily, reg, temp int) {
	if reg != first {
		panic("nft: a constant can't be part of a key")
	}
	Mark.load(m, f, reg, temp)
	bitwise(m, 0, 0)
}

func (Constant) typeof(u *userdata, f TableFamily) { Mark.typeof(u, f) }
