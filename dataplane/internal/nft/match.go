package nft

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Is matches packets whose field has a value, such as a protocol number or an interface index. If
// Not is set, it matches all other packets.
type Is struct {
	Field Field
	Value uint32
	Not   bool
}

func (s Is) text(f TableFamily) string {
	var value string
	switch s.Field {
	case L4proto:
		value = protocol(byte(s.Value))
	case Mark, CtMark, Priority:
		value = fmt.Sprintf("0x%08x", s.Value)
	default:
		value = fmt.Sprint(s.Value)
	}
	if s.Not {
		value = "!= " + value
	}
	return s.Field.text(f) + " " + value
}

func (s Is) write(m *message, f TableFamily) {
	s.Field.load(m, f, first, spare)
	value := binary.NativeEndian.AppendUint32(nil, s.Value)
	if n := s.Field.kind(f).size; n < 4 {
		value = []byte{byte(s.Value)}
	}
	compare(m, !s.Not, value)
}

func compare(m *message, equal bool, value []byte) {
	m.expr(listElem, "cmp", func() {
		m.Wire32(1, register(first)) // NFTA_CMP_SREG
		m.Wire32(2, bit(!equal))     // NFTA_CMP_OP: NFT_CMP_EQ, NFT_CMP_NEQ
		m.value(3, value)            // NFTA_CMP_DATA
	})
}

// bitwise sets the first register to (register & mask) ^ xor, in the host's byte order.
func bitwise(m *message, mask, xor uint32) {
	m.expr(listElem, "bitwise", func() {
		m.Wire32(1, register(first))                            // NFTA_BITWISE_SREG
		m.Wire32(2, register(first))                            // NFTA_BITWISE_DREG
		m.Wire32(3, 4)                                          // NFTA_BITWISE_LEN
		m.value(4, binary.NativeEndian.AppendUint32(nil, mask)) // NFTA_BITWISE_MASK
		m.value(5, binary.NativeEndian.AppendUint32(nil, xor))  // NFTA_BITWISE_XOR
	})
}

// Bits matches a mark if its bits in Mask equal Value. If Not is set, it matches all other marks.
type Bits struct {
	Field       Field // Mark or CtMark
	Mask, Value uint32
	Not         bool
}

func (s Bits) text(f TableFamily) string {
	operator := "=="
	if s.Not {
		operator = "!="
	}
	return fmt.Sprintf("%s & 0x%08x %s 0x%08x", s.Field.text(f), s.Mask, operator, s.Value)
}

func (s Bits) write(m *message, f TableFamily) {
	s.Field.load(m, f, first, spare)
	bitwise(m, s.Mask, 0)
	compare(m, !s.Not, binary.NativeEndian.AppendUint32(nil, s.Value))
}

// State matches connections in any of several states.
type State uint32

// These are the states (include/uapi/linux/netfilter/nf_conntrack_common.h).
const (
	Invalid     State = 1
	Established State = 2
	Related     State = 4
	New         State = 8
	Untracked   State = 64
)

func (s State) text(TableFamily) string {
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

func (s State) write(m *message, f TableFamily) { anyOf(m, f, CtState, uint32(s)) }

func anyOf(m *message, f TableFamily, x Field, bits uint32) {
	x.load(m, f, first, spare)
	bitwise(m, bits, 0)
	compare(m, false, make([]byte, 4))
}

// Translated matches connections whose destination address was translated.
type Translated struct{}

func (Translated) text(TableFamily) string { return "ct status dnat" }

func (Translated) write(m *message, f TableFamily) { anyOf(m, f, CtStatus, 32) } // IPS_DST_NAT

// FromClient matches packets in the direction of the packet that opened the connection.
type FromClient struct{}

func (FromClient) text(TableFamily) string { return "ct direction original" }

func (FromClient) write(m *message, _ TableFamily) {
	m.expr(listElem, "ct", func() {
		m.Wire32(1, register(first)) // NFTA_CT_DREG
		m.Wire32(2, 1)               // NFTA_CT_KEY: NFT_CT_DIRECTION
	})
	compare(m, true, []byte{0}) // IP_CT_DIR_ORIGINAL
}

// Flags matches TCP segments if their flags in Mask equal Value. If Not is set, it matches all
// other segments. The rule must match the protocol first.
type Flags struct {
	Mask, Value TCPFlags
	Not         bool
}

// TCPFlags are flags of the TCP header.
type TCPFlags byte

// These are the flags.
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

func (s Flags) text(TableFamily) string {
	if s.Not {
		return fmt.Sprintf("tcp flags != %s / %s", s.Value, s.Mask)
	}
	return fmt.Sprintf("tcp flags %s / %s", s.Value, s.Mask)
}

func (s Flags) write(m *message, _ TableFamily) {
	m.expr(listElem, "payload", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, 2)
		m.Wire32(3, 13)
		m.Wire32(4, 1)
	})
	m.expr(listElem, "bitwise", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, register(first))
		m.Wire32(3, 1)
		m.value(4, []byte{byte(s.Mask)})
		m.value(5, []byte{0})
	})
	compare(m, !s.Not, []byte{byte(s.Value)})
}

// OpensSCTP matches SCTP packets whose first chunk is INIT, because these open an association. The
// rule must match the protocol first.
type OpensSCTP struct{}

func (OpensSCTP) text(TableFamily) string { return "@th,96,8 1" }

func (OpensSCTP) write(m *message, _ TableFamily) {
	m.expr(listElem, "payload", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, 2)  // NFT_PAYLOAD_TRANSPORT_HEADER
		m.Wire32(3, 12) // offset of the first chunk, after the common header
		m.Wire32(4, 1)
	})
	compare(m, true, []byte{1})
}

// In matches packets for which the value of Of is in a set. If Not is set, it matches all other
// packets.
type In struct {
	Of  Expr
	Set *Set
	Not bool
}

func (s In) text(f TableFamily) string {
	if s.Not {
		return s.Of.text(f) + " != @" + s.Set.Name
	}
	return s.Of.text(f) + " @" + s.Set.Name
}

func (s In) write(m *message, f TableFamily) {
	s.Of.load(m, f, first, spare+s.Of.kind(f).registers())
	m.expr(listElem, "lookup", func() {
		m.String(1, s.Set.Name)
		m.Wire32(2, register(first))
		if s.Not {
			m.Wire32(5, 1) // NFTA_LOOKUP_FLAGS: NFT_LOOKUP_F_INV
		}
	})
}
