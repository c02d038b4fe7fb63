package nft

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// Rule is what a chain does with the packets that match.
type Rule struct {
	Do []Stmt
	// Comment is shown by listings, at most 127 bytes.
	Comment string
}

// Stmt is one statement of a rule: a match, or what happens to the packets that matched so far.
type Stmt interface {
	text(f Family) string
	write(m *message, f Family)
}

func (r Rule) text(f Family) string {
	parts := make([]string, len(r.Do))
	for i, s := range r.Do {
		parts[i] = s.text(f)
	}
	if r.Comment != "" {
		parts = append(parts, fmt.Sprintf("comment %q", r.Comment[:min(len(r.Comment), maxComment)]))
	}
	return strings.Join(parts, " ")
}

func (r Rule) write(m *message, f Family) {
	m.nest(ruleExprs, func() {
		for _, s := range r.Do {
			s.write(m, f)
		}
	})
	if u := comment(r.Comment); u != nil {
		m.bytes(ruleUserdata, u)
	}
}

// Registers that statements begin to use: their value, and what has to be computed on the way behind the four that nft
// leaves for a statement's own.
const (
	first = 0
	spare = 4
)

// Is matches a field with one value: a protocol's number, an interface's index, LocalAddress.
type Is struct {
	Field Field
	Value uint32
	Not   bool
}

// LocalAddress is the type (SaddrType) of the host's own addresses.
const LocalAddress = 2 // RTN_LOCAL

func (s Is) text(f Family) string {
	var value string
	switch s.Field {
	case L4proto:
		value = protocol(byte(s.Value))
	case SaddrType:
		value = "local"
	case Mark, CtMark:
		value = fmt.Sprintf("0x%08x", s.Value)
	default:
		value = fmt.Sprint(s.Value)
	}
	if s.Not {
		value = "!= " + value
	}
	return s.Field.text(f) + " " + value
}

func (s Is) write(m *message, f Family) {
	s.Field.load(m, f, first, spare)
	value := binary.NativeEndian.AppendUint32(nil, s.Value)
	if n := s.Field.kind(f).size; n < 4 {
		value = []byte{byte(s.Value)}
	}
	compare(m, !s.Not, value)
}

func compare(m *message, equal bool, value []byte) {
	m.expr(listElem, "cmp", func() {
		m.uint32(1, register(first)) // NFTA_CMP_SREG
		m.uint32(2, bit(!equal))     // NFTA_CMP_OP: NFT_CMP_EQ, NFT_CMP_NEQ
		m.value(3, value)            // NFTA_CMP_DATA
	})
}

// bitwise makes the first register (register & mask) ^ xor, in the host's byte order.
func bitwise(m *message, mask, xor uint32) {
	m.expr(listElem, "bitwise", func() {
		m.uint32(1, register(first))                            // NFTA_BITWISE_SREG
		m.uint32(2, register(first))                            // NFTA_BITWISE_DREG
		m.uint32(3, 4)                                          // NFTA_BITWISE_LEN
		m.value(4, binary.NativeEndian.AppendUint32(nil, mask)) // NFTA_BITWISE_MASK
		m.value(5, binary.NativeEndian.AppendUint32(nil, xor))  // NFTA_BITWISE_XOR
	})
}

// Bits matches a mark of which the bits of Mask are those of Value; with Not, all others.
type Bits struct {
	Field       Field // Mark or CtMark
	Mask, Value uint32
	Not         bool
}

func (s Bits) text(f Family) string {
	operator := "=="
	if s.Not {
		operator = "!="
	}
	return fmt.Sprintf("%s & 0x%08x %s 0x%08x", s.Field.text(f), s.Mask, operator, s.Value)
}

func (s Bits) write(m *message, f Family) {
	s.Field.load(m, f, first, spare)
	bitwise(m, s.Mask, 0)
	compare(m, !s.Not, binary.NativeEndian.AppendUint32(nil, s.Value))
}

// State matches connections in one of several states.
type State uint32

// The states (include/uapi/linux/netfilter/nf_conntrack_common.h).
const (
	Invalid     State = 1
	Established State = 2
	Related     State = 4
	New         State = 8
	Untracked   State = 64
)

func (s State) text(Family) string {
	var words []string
	for _, x := range []struct {
		state State
		word  string
	}{{Invalid, "invalid"}, {Established, "established"}, {Related, "related"}, {New, "new"}, {Untracked, "untracked"}} {
		if s&x.state != 0 {
			words = append(words, x.word)
		}
	}
	return "ct state " + strings.Join(words, ",")
}

func (s State) write(m *message, f Family) { anyOf(m, f, CtState, uint32(s)) }

func anyOf(m *message, f Family, x Field, bits uint32) {
	x.load(m, f, first, spare)
	bitwise(m, bits, 0)
	compare(m, false, make([]byte, 4))
}

// Translated matches connections whose destination was translated.
type Translated struct{}

func (Translated) text(Family) string { return "ct status dnat" }

func (Translated) write(m *message, f Family) { anyOf(m, f, CtStatus, 32) } // IPS_DST_NAT

// Flags matches TCP segments of whose flags in Mask those of Value are set; with Not, all others. A match of the protocol
// stands before it.
type Flags struct {
	Mask, Value TCPFlags
	Not         bool
}

// TCPFlags are flags of the TCP header.
type TCPFlags byte

// The flags.
const (
	FIN TCPFlags = 1
	SYN TCPFlags = 2
	RST TCPFlags = 4
	ACK TCPFlags = 16
)

func (x TCPFlags) String() string {
	var words []string
	for i, word := range []string{"fin", "syn", "rst", "psh", "ack"} {
		if x&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	return strings.Join(words, ",")
}

func (s Flags) text(Family) string {
	if s.Not {
		return fmt.Sprintf("tcp flags != %s / %s", s.Value, s.Mask)
	}
	return fmt.Sprintf("tcp flags %s / %s", s.Value, s.Mask)
}

func (s Flags) write(m *message, _ Family) {
	m.expr(listElem, "payload", func() {
		m.uint32(1, register(first))
		m.uint32(2, 2)
		m.uint32(3, 13)
		m.uint32(4, 1)
	})
	m.expr(listElem, "bitwise", func() {
		m.uint32(1, register(first))
		m.uint32(2, register(first))
		m.uint32(3, 1)
		m.value(4, []byte{byte(s.Mask)})
		m.value(5, []byte{0})
	})
	compare(m, !s.Not, []byte{byte(s.Value)})
}

// In matches values that are in a set; with Not, those that are not.
type In struct {
	Of  Expr
	Set *Set
	Not bool
}

func (s In) text(f Family) string {
	if s.Not {
		return s.Of.text(f) + " != @" + s.Set.Name
	}
	return s.Of.text(f) + " @" + s.Set.Name
}

func (s In) write(m *message, f Family) {
	s.Of.load(m, f, first, spare+s.Of.kind(f).registers())
	m.expr(listElem, "lookup", func() {
		m.string(1, s.Set.Name)
		m.uint32(2, register(first))
		if s.Not {
			m.uint32(5, 1) // NFTA_LOOKUP_FLAGS: NFT_LOOKUP_F_INV
		}
	})
}

// Vmap goes where a map to verdicts says; packets for which it has nothing go on.
type Vmap struct {
	Of Expr
	In *Set
}

func (s Vmap) text(f Family) string { return s.Of.text(f) + " vmap @" + s.In.Name }

func (s Vmap) write(m *message, f Family) {
	s.Of.load(m, f, first, spare+s.Of.kind(f).registers())
	m.expr(listElem, "lookup", func() {
		m.string(1, s.In.Name)
		m.uint32(2, register(first))
		m.uint32(3, regVerdict)
	})
}

// AddBits sets bits of a mark, and leaves its others as they are.
type AddBits struct {
	Field Field // Mark or CtMark
	Bits  uint32
}

func (s AddBits) text(f Family) string {
	return fmt.Sprintf("%s set %s | 0x%08x", s.Field.text(f), s.Field.text(f), s.Bits)
}

func (s AddBits) write(m *message, f Family) {
	s.Field.load(m, f, first, spare)
	bitwise(m, ^s.Bits, s.Bits)
	s.Field.set(m, first)
}

// SetField sets a field that can be set (Priority, Mark, CtMark) to a value that is computed.
type SetField struct {
	Field Field
	To    Expr
}

func (s SetField) text(f Family) string { return s.Field.text(f) + " set " + s.To.text(f) }

func (s SetField) write(m *message, f Family) {
	s.To.load(m, f, first, spare)
	s.Field.set(m, first)
}

// ClearPriority sets the packet's priority to 0.
type ClearPriority struct{}

func (ClearPriority) text(Family) string { return "meta priority set 0:0" }

func (ClearPriority) write(m *message, _ Family) {
	m.expr(listElem, "immediate", func() {
		m.uint32(1, register(first))
		m.value(2, make([]byte, 4))
	})
	Priority.set(m, first)
}

// Update adds an element to a dynamic map, or replaces and refreshes the one that is there. The packet goes on either way.
type Update struct {
	Map     *Set
	Key     Expr
	Data    Expr
	Timeout time.Duration
}

func (s Update) text(f Family) string {
	return fmt.Sprintf("update @%s { %s timeout %ds : %s }", s.Map.Name, s.Key.text(f), int(s.Timeout.Seconds()), s.Data.text(f))
}

func (s Update) write(m *message, f Family) { dynset(m, f, s.Map, 1, s.Key, s.Data, s.Timeout) } // NFT_DYNSET_OP_UPDATE

// Delete removes the element of a key from a dynamic map. nft wants its data named; the kernel does not compare it.
type Delete struct {
	Map  *Set
	Key  Expr
	Data Expr
}

func (s Delete) text(f Family) string {
	return fmt.Sprintf("delete @%s { %s : %s }", s.Map.Name, s.Key.text(f), s.Data.text(f))
}

func (s Delete) write(m *message, f Family) { dynset(m, f, s.Map, 2, s.Key, s.Data, 0) } // NFT_DYNSET_OP_DELETE

func dynset(m *message, f Family, set *Set, op uint32, key, data Expr, timeout time.Duration) {
	key.load(m, f, first, spare)
	data.load(m, f, spare, spare+1)
	m.expr(listElem, "dynset", func() {
		m.string(1, set.Name)        // NFTA_DYNSET_SET_NAME
		m.uint32(3, op)              // NFTA_DYNSET_OP
		m.uint32(4, register(first)) // NFTA_DYNSET_SREG_KEY
		m.uint32(5, register(spare)) // NFTA_DYNSET_SREG_DATA
		if timeout > 0 {
			m.uint64(6, uint64(timeout.Milliseconds())) // NFTA_DYNSET_TIMEOUT
		}
	})
}

// DNAT gives the connection the destination, address and port, that To has.
type DNAT struct{ To Lookup }

func (s DNAT) text(f Family) string { return fmt.Sprintf("dnat %s to %s", f, s.To.text(f)) }

func (s DNAT) write(m *message, f Family) {
	s.To.load(m, f, first, spare)
	addr := Daddr.kind(f).registers()
	m.expr(listElem, "nat", func() {
		m.uint32(1, 1)                    // NFTA_NAT_TYPE: NFT_NAT_DNAT
		m.uint32(2, uint32(f))            // NFTA_NAT_FAMILY
		m.uint32(3, register(first))      // NFTA_NAT_REG_ADDR_MIN
		m.uint32(5, register(first+addr)) // NFTA_NAT_REG_PROTO_MIN
	})
}

// Redirect leads the connection to a port of this host. A match of the protocol stands before it.
type Redirect struct{ To Lookup }

func (s Redirect) text(f Family) string { return "redirect to :" + s.To.text(f) }

func (s Redirect) write(m *message, f Family) {
	s.To.load(m, f, first, spare)
	m.expr(listElem, "redir", func() { m.uint32(1, register(first)) }) // NFTA_REDIR_REG_PROTO_MIN
}

// MSS sets the maximum segment size of a TCP SYN to at most Size. A match of the flags stands before it.
type MSS struct{ Size uint16 }

func (s MSS) text(Family) string {
	return fmt.Sprintf("tcp option maxseg size > %d tcp option maxseg size set %d", s.Size, s.Size)
}

func (s MSS) write(m *message, _ Family) {
	value := binary.BigEndian.AppendUint16(nil, s.Size)
	m.expr(listElem, "exthdr", func() { maxseg(m, 1) }) // NFTA_EXTHDR_DREG
	m.expr(listElem, "cmp", func() {
		m.uint32(1, register(first))
		m.uint32(2, 4) // NFT_CMP_GT
		m.value(3, value)
	})
	m.expr(listElem, "immediate", func() {
		m.uint32(1, register(first))
		m.value(2, value)
	})
	m.expr(listElem, "exthdr", func() { maxseg(m, 7) }) // NFTA_EXTHDR_SREG
}

// ClampMSS lowers the maximum segment size of a TCP SYN to what the links of its path take, both ways. A match of the flags
// stands before it.
type ClampMSS struct{}

func (ClampMSS) text(Family) string { return "tcp option maxseg size set rt mtu" }

func (ClampMSS) write(m *message, _ Family) {
	m.expr(listElem, "rt", func() {
		m.uint32(1, register(first)) // NFTA_RT_DREG
		m.uint32(2, 3)               // NFTA_RT_KEY: NFT_RT_TCPMSS
	})
	m.expr(listElem, "byteorder", func() {
		m.uint32(1, register(first)) // NFTA_BYTEORDER_SREG
		m.uint32(2, register(first)) // NFTA_BYTEORDER_DREG
		m.uint32(3, 1)               // NFTA_BYTEORDER_OP: NFT_BYTEORDER_HTON
		m.uint32(4, 2)               // NFTA_BYTEORDER_LEN
		m.uint32(5, 2)               // NFTA_BYTEORDER_SIZE
	})
	m.expr(listElem, "exthdr", func() { maxseg(m, 7) }) // NFTA_EXTHDR_SREG
}

// maxseg writes the attributes of an expression about the option of a TCP SYN that has the segment size, by the attribute
// that names the register.
func maxseg(m *message, reg int) {
	m.uint32(reg, register(first))
	m.bytes(2, []byte{2}) // NFTA_EXTHDR_TYPE: TCPOPT_MAXSEG
	m.uint32(3, 2)        // NFTA_EXTHDR_OFFSET
	m.uint32(4, 2)        // NFTA_EXTHDR_LEN
	m.uint32(6, 1)        // NFTA_EXTHDR_OP: NFT_EXTHDR_OP_TCPOPT
}

// Simple is a statement without arguments.
type Simple string

// The simple statements.
const (
	Accept      Simple = "accept"
	Drop        Simple = "drop"
	Return      Simple = "return"
	Masquerade  Simple = "masquerade fully-random" // the node's address, and a port by chance
	Notrack     Simple = "notrack"
	Counter     Simple = "counter"
	ResetTCP    Simple = "reject with tcp reset" // a match of the protocol stands before it
	Unreachable Simple = "reject"                // ICMP: port unreachable
)

func (s Simple) text(Family) string { return string(s) }

func (s Simple) write(m *message, f Family) {
	switch s {
	case Accept:
		verdict(m, codeAccept, "")
	case Drop:
		verdict(m, codeDrop, "")
	case Return:
		verdict(m, codeReturn, "")
	case Masquerade:
		m.expr(listElem, "masq", func() { m.uint32(1, 0x10) }) // NFTA_MASQ_FLAGS: NF_NAT_RANGE_PROTO_RANDOM_FULLY
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
		m.uint32(1, kind)        // NFTA_REJECT_TYPE
		m.bytes(2, []byte{code}) // NFTA_REJECT_ICMP_CODE
	})
}

// Goto leads to a chain and does not come back.
type Goto string

func (s Goto) text(Family) string { return "goto " + string(s) }

func (s Goto) write(m *message, _ Family) { verdict(m, codeGoto, string(s)) }

func verdict(m *message, code uint32, chain string) {
	m.expr(listElem, "immediate", func() {
		m.uint32(1, regVerdict)   // NFTA_IMMEDIATE_DREG
		m.verdict(2, code, chain) // NFTA_IMMEDIATE_DATA
	})
}
