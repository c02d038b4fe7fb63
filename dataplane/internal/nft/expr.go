package nft

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
)

// TableFamily is a table's family, such as IPv4.
type TableFamily byte

// These are the families. Each family has its own tables. A table for both IP families (inet) would
// need a match on the family in each rule.
const (
	IPv4   TableFamily = 2  // NFPROTO_IPV4, "ip"
	Netdev TableFamily = 5  // NFPROTO_NETDEV: frames of all protocols on a device
	IPv6   TableFamily = 10 // NFPROTO_IPV6, "ip6"
)

// String returns the family's name in nft syntax: ip, ip6 or netdev.
func (f TableFamily) String() string {
	switch f {
	case IPv6:
		return "ip6"
	case Netdev:
		return "netdev"
	}
	return "ip"
}

// Expr is a value that rules can read: a field of the packet, a number, or a concatenation of
// values.
type Expr interface {
	// text returns the expression in nft syntax.
	text(f TableFamily) string
	// kind returns the type of the value. The type determines the format of values and how sets are
	// described.
	kind(f TableFamily) kind
	// load writes the expressions that load the value into register reg. temp is the first free
	// register.
	load(m *message, f TableFamily, reg, temp int)
	// typeof writes the description of the expression to a set's user data.
	typeof(u *userdata, f TableFamily)
}

// kind is a type of value: its number in nft, its size, and its byte order. IPv4 and IPv6 addresses
// have different kinds.
type kind struct {
	id    uint32
	size  int
	order order
	parts []kind // kinds of a concatenation's parts
}

type order uint32

const (
	mixed  order = 0 // for a concatenation
	native order = 1
	wire   order = 2
)

// registers returns the number of 32-bit registers that a value occupies.
func (k kind) registers() int { return (k.size + 3) / 4 }

// These are the numbers of nft's types (datatype.h in nft). The kernel stores them only for
// listings.
const (
	typeVerdict = 0xffffff00
	typeInteger = 4
	typeIPv4    = 7
	typeIPv6    = 8
	typeProto   = 12
	typePort    = 13
	typeMark    = 19
	typeIface   = 20
	typeClass   = 23
	typeIfName  = 41
	typeOther   = 0 // not used in keys or data of this package
)

// Concat is a concatenation of values. Each value is padded to 32 bits. Most maps have a
// concatenation as their key.
type Concat []Expr

func (c Concat) text(f TableFamily) string {
	parts := make([]string, len(c))
	for i, e := range c {
		parts[i] = e.text(f)
	}
	return strings.Join(parts, " . ")
}

func (c Concat) kind(f TableFamily) (all kind) {
	for _, e := range c {
		k := e.kind(f)
		all.id = all.id<<6 | k.id
		all.size += k.registers() * 4
		all.parts = append(all.parts, k)
	}
	return all
}

func (c Concat) load(m *message, f TableFamily, reg, temp int) {
	for _, e := range c {
		e.load(m, f, reg, temp)
		reg += e.kind(f).registers()
	}
}

func (c Concat) typeof(u *userdata, f TableFamily) {
	u.expr(exprConcat, func() {
		for i, e := range c {
			u.nest(i, func() { e.typeof(u, f) })
		}
	})
}

// Numgen is the sum of Offset and a number below Mod: either a random number, or the next value of
// the rule's counter.
type Numgen struct {
	Random      bool
	Mod, Offset uint32
}

// Fixed returns an expression with a fixed value, for map keys. nft does not accept a plain number
// in a concatenation.
func Fixed(n uint32) Numgen { return Numgen{Random: true, Mod: 1, Offset: n} }

func (n Numgen) text(TableFamily) string {
	text := fmt.Sprintf("numgen inc mod %d", n.Mod)
	if n.Random {
		text = fmt.Sprintf("numgen random mod %d", n.Mod)
	}
	if n.Offset != 0 {
		text += fmt.Sprintf(" offset %d", n.Offset)
	}
	return text
}

func (Numgen) kind(TableFamily) kind { return kind{id: typeInteger, size: 4, order: native} }

func (n Numgen) load(m *message, _ TableFamily, reg, _ int) {
	m.expr(listElem, "numgen", func() {
		m.Wire32(1, register(reg)) // NFTA_NG_DREG
		m.Wire32(2, n.Mod)         // NFTA_NG_MODULUS
		m.Wire32(3, bit(n.Random)) // NFTA_NG_TYPE
		m.Wire32(4, n.Offset)      // NFTA_NG_OFFSET
	})
}

func (n Numgen) typeof(u *userdata, _ TableFamily) {
	u.expr(exprNumgen, func() {
		u.uint32(0, bit(n.Random))
		u.uint32(1, n.Mod)
		u.uint32(2, n.Offset)
	})
}

// Jhash is the kernel's Jenkins hash of a value with a seed, scaled to a number below Mod, plus
// Offset.
type Jhash struct {
	Of     Expr
	Mod    uint32
	Seed   uint32
	Offset uint32
}

func (j Jhash) text(f TableFamily) string {
	text := fmt.Sprintf("jhash %s mod %d seed 0x%x", j.Of.text(f), j.Mod, j.Seed)
	if j.Offset != 0 {
		text += fmt.Sprintf(" offset %d", j.Offset)
	}
	return text
}

func (Jhash) kind(TableFamily) kind { return kind{id: typeInteger, size: 4, order: native} }

func (j Jhash) load(m *message, f TableFamily, reg, temp int) {
	of := j.Of.kind(f)
	j.Of.load(m, f, temp, temp+of.registers())
	m.expr(listElem, "hash", func() {
		m.Wire32(1, register(temp))  // NFTA_HASH_SREG
		m.Wire32(2, register(reg))   // NFTA_HASH_DREG
		m.Wire32(3, uint32(of.size)) // NFTA_HASH_LEN
		m.Wire32(4, j.Mod)           // NFTA_HASH_MODULUS
		m.Wire32(5, j.Seed)          // NFTA_HASH_SEED
		m.Wire32(6, j.Offset)        // NFTA_HASH_OFFSET
		m.Wire32(7, 0)               // NFTA_HASH_TYPE, NFT_HASH_JENKINS
	})
}

// typeof writes a number generator's description, because nft 1.0.6 crashes when it lists a set
// that is declared with a hash.
func (Jhash) typeof(u *userdata, f TableFamily) { Numgen{Random: true, Mod: 2}.typeof(u, f) }

// Network is an address's network: the first Bits bits of Field.
type Network struct {
	Field Field // Saddr or Daddr
	Bits  int
}

func (n Network) mask(f TableFamily) netip.Addr {
	all := bytes.Repeat([]byte{0xff}, n.Field.kind(f).size)
	a, _ := netip.AddrFromSlice(all) // 4 or 16 bytes
	return netip.PrefixFrom(a, n.Bits).Masked().Addr()
}

func (n Network) text(f TableFamily) string {
	return fmt.Sprintf("%s & %s", n.Field.text(f), n.mask(f))
}

func (n Network) kind(f TableFamily) kind { return n.Field.kind(f) }

func (n Network) load(m *message, f TableFamily, reg, temp int) {
	n.Field.load(m, f, reg, temp)
	mask := n.mask(f).AsSlice()
	m.expr(listElem, "bitwise", func() {
		m.Wire32(1, register(reg))          // NFTA_BITWISE_SREG
		m.Wire32(2, register(reg))          // NFTA_BITWISE_DREG
		m.Wire32(3, uint32(len(mask)))      // NFTA_BITWISE_LEN
		m.value(4, mask)                    // NFTA_BITWISE_MASK
		m.value(5, make([]byte, len(mask))) // NFTA_BITWISE_XOR
	})
}

func (n Network) typeof(u *userdata, f TableFamily) { n.Field.typeof(u, f) }

// Lookup is a key's value in a map. If the map does not have the key, the rule does not match.
type Lookup struct {
	Key Expr
	In  *Set
}

func (l Lookup) text(f TableFamily) string { return l.Key.text(f) + " map @" + l.In.Name }

func (l Lookup) kind(f TableFamily) kind { return l.In.dataKind(f) }

func (l Lookup) load(m *message, f TableFamily, reg, temp int) {
	l.Key.load(m, f, reg, temp+l.Key.kind(f).registers())
	m.expr(listElem, "lookup", func() {
		m.String(1, l.In.Name)     // NFTA_LOOKUP_SET
		m.Wire32(2, register(reg)) // NFTA_LOOKUP_SREG
		m.Wire32(3, register(reg)) // NFTA_LOOKUP_DREG
	})
}

func (l Lookup) typeof(u *userdata, f TableFamily) { l.In.Data.typeof(u, f) }

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
