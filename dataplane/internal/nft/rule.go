package nft

import (
	"fmt"
	"strings"
	"time"
)

// Rule is a rule in a chain.
type Rule struct {
	Do []Stmt
}

// Stmt is a statement in a rule: a match, or an action on the packets that all previous statements
// match.
type Stmt interface {
	text(f TableFamily) string
	write(m *message, f TableFamily)
}

func (r Rule) text(f TableFamily) string {
	parts := make([]string, len(r.Do))
	for i, s := range r.Do {
		parts[i] = s.text(f)
	}
	return strings.Join(parts, " ")
}

func (r Rule) write(m *message, f TableFamily) {
	m.nest(ruleExprs, func() {
		for _, s := range r.Do {
			s.write(m, f)
		}
	})
}

// These are the first registers that statements use. A statement's value starts in first.
// Intermediate results start in spare, which follows the four registers that nft uses for a
// statement.
const (
	first = 0
	spare = 4
)

// Vmap executes a map's verdict for a key. If the map does not have the key, the packet continues
// with the next rule.
type Vmap struct {
	Of Expr
	In *Set
}

func (s Vmap) text(f TableFamily) string { return s.Of.text(f) + " vmap @" + s.In.Name }

func (s Vmap) write(m *message, f TableFamily) {
	s.Of.load(m, f, first, spare+s.Of.kind(f).registers())
	m.expr(listElem, "lookup", func() {
		m.String(1, s.In.Name)
		m.Wire32(2, register(first))
		m.Wire32(3, regVerdict)
	})
}

// AddBits sets bits of a mark, and keeps all other bits.
type AddBits struct {
	Field Field // Mark or CtMark
	Bits  uint32
}

func (s AddBits) text(f TableFamily) string {
	return fmt.Sprintf("%s set %s | 0x%08x", s.Field.text(f), s.Field.text(f), s.Bits)
}

func (s AddBits) write(m *message, f TableFamily) {
	s.Field.load(m, f, first, spare)
	bitwise(m, ^s.Bits, s.Bits)
	s.Field.set(m, first)
}

// ClearBits clears bits of a mark, and keeps all other bits.
type ClearBits struct {
	Field Field // Mark or CtMark
	Bits  uint32
}

func (s ClearBits) text(f TableFamily) string {
	return fmt.Sprintf("%s set %s & 0x%08x", s.Field.text(f), s.Field.text(f), ^s.Bits)
}

func (s ClearBits) write(m *message, f TableFamily) {
	s.Field.load(m, f, first, spare)
	bitwise(m, ^s.Bits, 0)
	s.Field.set(m, first)
}

// SetField sets a field (Priority, Mark, CtMark, Maxseg) to a computed value. The kernel never
// increases Maxseg. The rule must match the TCP flags first.
type SetField struct {
	Field Field
	To    Expr
}

func (s SetField) text(f TableFamily) string { return s.Field.text(f) + " set " + s.To.text(f) }

func (s SetField) write(m *message, f TableFamily) {
	s.To.load(m, f, first, spare)
	s.Field.set(m, first)
}

// OnlyACK clears all of a TCP segment's flags except ACK. The rule must match the protocol first.
type OnlyACK struct{}

func (OnlyACK) text(TableFamily) string { return "tcp flags set ack" }

func (OnlyACK) write(m *message, _ TableFamily) {
	const at, size = 12, 2 // covers the header length and the flags, because nft does not write single bytes
	m.expr(listElem, "payload", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, 2) // NFT_PAYLOAD_TRANSPORT_HEADER
		m.Wire32(3, at)
		m.Wire32(4, size)
	})
	m.expr(listElem, "bitwise", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, register(first))
		m.Wire32(3, size)
		m.value(4, []byte{0xff, 0})
		m.value(5, []byte{0, byte(ACK)})
	})
	m.expr(listElem, "payload", func() {
		m.Wire32(2, 2)
		m.Wire32(3, at)
		m.Wire32(4, size)
		m.Wire32(5, register(first)) // NFTA_PAYLOAD_SREG
		m.Wire32(6, 1)               // NFTA_PAYLOAD_CSUM_TYPE: NFT_PAYLOAD_CSUM_INET
		m.Wire32(7, 16)              // NFTA_PAYLOAD_CSUM_OFFSET
		m.Wire32(8, 0)               // NFTA_PAYLOAD_CSUM_FLAGS
	})
}

// ClearPriority sets the packet's priority to 0.
type ClearPriority struct{}

func (ClearPriority) text(TableFamily) string { return "meta priority set 0:0" }

func (ClearPriority) write(m *message, _ TableFamily) {
	m.expr(listElem, "immediate", func() {
		m.Wire32(1, register(first))
		m.value(2, make([]byte, 4))
	})
	Priority.set(m, first)
}

// Update adds an element to a dynamic map. If the element exists, Update replaces its data and
// restarts its timeout. If Data is nil, Map is a set. The packet always continues.
type Update struct {
	Map     *Set
	Key     Expr
	Data    Expr
	Timeout time.Duration
}

func (s Update) text(f TableFamily) string {
	data := ""
	if s.Data != nil {
		data = " : " + s.Data.text(f)
	}
	return fmt.Sprintf("update @%s { %s timeout %s%s }", s.Map.Name, s.Key.text(f), duration(s.Timeout), data)
}

func (s Update) write(m *message, f TableFamily) { dynset(m, f, s.Map, 1, s.Key, s.Data, s.Timeout) } // NFT_DYNSET_OP_UPDATE

// Over adds an element to a dynamic set, and matches packets that exceed the element's limit:
// either a packet rate or a number of connections. If the set is full, packets with a new key do
// not match. Each element keeps the limit with which it was added.
type Over struct {
	Set *Set
	Key Expr
	// Rate is the maximum number of packets in the period Per, and also the burst size. Zero means
	// that Connections is the limit. An element with a rate expires after Per without a packet. By
	// then, the full burst is available again, as in a new element.
	Rate uint32
	Per  time.Duration
	// Connections is the maximum number of connections in conntrack. The kernel removes elements
	// without connections.
	Connections uint32
}

func (s Over) text(f TableFamily) string {
	if s.Rate == 0 {
		return fmt.Sprintf("add @%s { %s ct count over %d }", s.Set.Name, s.Key.text(f), s.Connections)
	}
	unit := map[time.Duration]string{time.Second: "second", time.Minute: "minute", time.Hour: "hour"}[s.Per]
	return fmt.Sprintf("update @%s { %s timeout %s limit rate over %d/%s burst %[4]d packets }", s.Set.Name, s.Key.text(f), duration(s.Per), s.Rate, unit)
}

func (s Over) write(m *message, f TableFamily) {
	s.Key.load(m, f, first, spare)
	m.expr(listElem, "dynset", func() {
		m.String(1, s.Set.Name)      // NFTA_DYNSET_SET_NAME
		m.Wire32(3, bit(s.Rate > 0)) // NFTA_DYNSET_OP: NFT_DYNSET_OP_ADD, NFT_DYNSET_OP_UPDATE
		m.Wire32(4, register(first)) // NFTA_DYNSET_SREG_KEY
		if s.Rate == 0 {
			m.expr(7, "connlimit", func() { // NFTA_DYNSET_EXPR
				m.Wire32(1, s.Connections) // NFTA_CONNLIMIT_COUNT
				m.Wire32(2, 1)             // NFTA_CONNLIMIT_FLAGS: NFT_CONNLIMIT_F_INV
			})
			return
		}
		m.Wire64(6, uint64(s.Per.Milliseconds())) // NFTA_DYNSET_TIMEOUT
		m.expr(7, "limit", func() {
			m.Wire64(1, uint64(s.Rate))          // NFTA_LIMIT_RATE
			m.Wire64(2, uint64(s.Per.Seconds())) // NFTA_LIMIT_UNIT
			m.Wire32(3, s.Rate)                  // NFTA_LIMIT_BURST
			m.Wire32(4, 0)                       // NFTA_LIMIT_TYPE: NFT_LIMIT_PKTS
			m.Wire32(5, 1)                       // NFTA_LIMIT_FLAGS: NFT_LIMIT_F_INV
		})
	})
}

// Delete removes the element with a key from a dynamic map. nft requires the element's data, but
// the kernel ignores it.
type Delete struct {
	Map  *Set
	Key  Expr
	Data Expr
}

func (s Delete) text(f TableFamily) string {
	return fmt.Sprintf("delete @%s { %s : %s }", s.Map.Name, s.Key.text(f), s.Data.text(f))
}

func (s Delete) write(m *message, f TableFamily) { dynset(m, f, s.Map, 2, s.Key, s.Data, 0) } // NFT_DYNSET_OP_DELETE

func dynset(m *message, f TableFamily, set *Set, op uint32, key, data Expr, timeout time.Duration) {
	key.load(m, f, first, spare)
	if data != nil {
		data.load(m, f, spare, spare+1)
	}
	m.expr(listElem, "dynset", func() {
		m.String(1, set.Name)        // NFTA_DYNSET_SET_NAME
		m.Wire32(3, op)              // NFTA_DYNSET_OP
		m.Wire32(4, register(first)) // NFTA_DYNSET_SREG_KEY
		if data != nil {
			m.Wire32(5, register(spare)) // NFTA_DYNSET_SREG_DATA
		}
		if timeout > 0 {
			m.Wire64(6, uint64(timeout.Milliseconds())) // NFTA_DYNSET_TIMEOUT
		}
	})
}

// DNAT sets the connection's destination to the result of To: an address, or an address and a port.
// If Port is set, To has no port, and the port is the result of Port.
type DNAT struct {
	To   Lookup
	Port *Lookup
}

func (s DNAT) text(f TableFamily) string {
	text := fmt.Sprintf("dnat %s to %s", f, s.To.text(f))
	if s.Port != nil {
		text += " : " + s.Port.text(f)
	}
	return text
}

func (s DNAT) write(m *message, f TableFamily) {
	s.To.load(m, f, first, spare)
	port := first + Daddr.kind(f).registers()
	hasPort := s.To.kind(f).registers() > Daddr.kind(f).registers()
	if s.Port != nil {
		port, hasPort = spare, true
		s.Port.load(m, f, port, port)
	}
	m.expr(listElem, "nat", func() {
		m.Wire32(1, 1)               // NFTA_NAT_TYPE: NFT_NAT_DNAT
		m.Wire32(2, uint32(f))       // NFTA_NAT_FAMILY
		m.Wire32(3, register(first)) // NFTA_NAT_REG_ADDR_MIN
		if hasPort {
			m.Wire32(5, register(port)) // NFTA_NAT_REG_PROTO_MIN
		}
	})
}

// Redirect sends the connection to a port of this host, at the first address of the interface on
// which its packets arrive. The rule must match the protocol first.
type Redirect struct{ To Lookup }

func (s Redirect) text(f TableFamily) string { return "redirect to :" + s.To.text(f) }

func (s Redirect) write(m *message, f TableFamily) {
	s.To.load(m, f, first, spare)
	m.expr(listElem, "redir", func() { m.Wire32(1, register(first)) }) // NFTA_REDIR_REG_PROTO_MIN
}

// DNATPort sets the port of the connection's destination, and keeps the address. The rule must
// match the protocol first. If the port is unchanged, the connection does not count as translated.
type DNATPort struct{ To Lookup }

func (s DNATPort) text(f TableFamily) string { return "dnat to :" + s.To.text(f) }

func (s DNATPort) write(m *message, f TableFamily) {
	s.To.load(m, f, first, spare)
	m.expr(listElem, "nat", func() {
		m.Wire32(1, 1)               // NFTA_NAT_TYPE: NFT_NAT_DNAT
		m.Wire32(2, uint32(f))       // NFTA_NAT_FAMILY
		m.Wire32(5, register(first)) // NFTA_NAT_REG_PROTO_MIN
	})
}

// ClampMSS limits the maximum segment size of a TCP SYN to the path MTU in both directions. The
// rule must match the TCP flags first.
type ClampMSS struct{}

func (ClampMSS) text(TableFamily) string { return "tcp option maxseg size set rt mtu" }

func (ClampMSS) write(m *message, _ TableFamily) {
	m.expr(listElem, "rt", func() {
		m.Wire32(1, register(first)) // NFTA_RT_DREG
		m.Wire32(2, 3)               // NFTA_RT_KEY: NFT_RT_TCPMSS
	})
	m.expr(listElem, "byteorder", func() {
		m.Wire32(1, register(first)) // NFTA_BYTEORDER_SREG
		m.Wire32(2, register(first)) // NFTA_BYTEORDER_DREG
		m.Wire32(3, 1)               // NFTA_BYTEORDER_OP: NFT_BYTEORDER_HTON
		m.Wire32(4, 2)               // NFTA_BYTEORDER_LEN
		m.Wire32(5, 2)               // NFTA_BYTEORDER_SIZE
	})
	Maxseg.set(m, first)
}

// Simple is a statement without arguments.
type Simple string

// These are the simple statements.
const (
	Accept      Simple = "accept"
	Drop        Simple = "drop"
	Return      Simple = "return"
	Masquerade  Simple = "masquerade fully-random" // to the node's address and a random port
	Notrack     Simple = "notrack"
	ResetTCP    Simple = "reject with tcp reset" // the rule must match the protocol first
	Unreachable Simple = "reject"                // ICMP: port unreachable
)

func (s Simple) text(TableFamily) string { return string(s) }

func (s Simple) write(m *message, f TableFamily) {
	switch s {
	case Accept:
		verdict(m, codeAccept, "")
	case Drop:
		verdict(m, codeDrop, "")
	case Return:
		verdict(m, codeReturn, "")
	case Masquerade:
		m.expr(listElem, "masq", func() { m.Wire32(1, 0x10) }) // NFTA_MASQ_FLAGS: NF_NAT_RANGE_PROTO_RANDOM_FULLY
	case ResetTCP:
		reject(m, 1, 0) // NFT_REJECT_TCP_RST
	case Unreachable:
		code := byte(3) // ICMP_PORT_UNREACH
		if f == IPv6 {
			code = 4 // ICMPV6_PORT_UNREACH
		}
		reject(m, 0, code) // NFT_REJECT_ICMP_UNREACH
	default:
		m.expr(listElem, string(s), func() {})
	}
}

func reject(m *message, kind uint32, code byte) {
	m.expr(listElem, "reject", func() {
		m.Wire32(1, kind) // NFTA_REJECT_TYPE
		m.Bytes(2, code)  // NFTA_REJECT_ICMP_CODE
	})
}

// Jump continues in another chain, and returns if that chain issues no verdict.
type Jump string

func (s Jump) text(TableFamily) string { return "jump " + string(s) }

func (s Jump) write(m *message, _ TableFamily) { verdict(m, codeJump, string(s)) }

// Goto continues in another chain, and does not return.
type Goto string

func (s Goto) text(TableFamily) string { return "goto " + string(s) }

func (s Goto) write(m *message, _ TableFamily) { verdict(m, codeGoto, string(s)) }

func verdict(m *message, code uint32, chain string) {
	m.expr(listElem, "immediate", func() {
		m.Wire32(1, regVerdict)   // NFTA_IMMEDIATE_DREG
		m.verdict(2, code, chain) // NFTA_IMMEDIATE_DATA
	})
}
