package nft

// Field is a property of a packet: a header field, or a property of its path through the host or of
// its connection.
type Field byte

// These are the fields.
const (
	Saddr        Field = iota // source address
	Daddr                     // destination address
	L4proto                   // protocol of the transport header
	Sport                     // source port of TCP, UDP or SCTP
	Dport                     // destination port
	Iif                       // index of the incoming interface; since Linux 5.5 also in nat postrouting
	Oif                       // index of the outgoing interface
	IifName                   // name of the incoming interface, padded with zeros to 16 bytes; empty for a local program's packet
	OifName                   // name of the outgoing interface
	Priority                  // the packet's priority: rules can use its 32 bits as a variable
	Mark                      // the packet's mark
	CtMark                    // the connection's mark
	CtState                   // bits of the connection's state
	CtStatus                  // status bits of the connection
	CtDaddr                   // destination address of the packet that opened the connection
	CtDport                   // destination port of the packet that opened the connection
	CtReplySaddr              // source address of the replies
	CtReplySport              // source port of the replies
	Maxseg                    // maximum segment size that a TCP SYN announces
	PacketType                // 0 if the frame is addressed to this host
)

// source is where the kernel reads a field.
type source byte

const (
	fromNetwork   source = iota // the network header
	fromTransport               // the transport header
	fromMeta
	fromCt
	fromTCP
)

// spec describes how a table family reads a field.
type spec struct {
	text   string
	kind   kind
	source source
	at     uint32 // offset in a header, or the key of meta or ct, or the kind of a TCP option
	// protocol and field are nft's numbers for the field's protocol and for the field, in user
	// data.
	protocol, field uint32
}

// These are protocol numbers in nft's user data (enum proto_desc_id in nft).
const (
	protocolTransport = 11
	protocolIPv4      = 12
	protocolIPv6      = 13
)

func (x Field) spec(f TableFamily) spec {
	addr, network := kind{id: typeIPv4, size: 4, order: wire}, uint32(protocolIPv4)
	ctSaddr, ctDaddr := uint32(19), uint32(20) // NFT_CT_SRC_IP, NFT_CT_DST_IP
	saddr, daddr := spec{at: 12, field: 11}, spec{at: 16, field: 12}
	if f == IPv6 {
		addr, network = kind{id: typeIPv6, size: 16, order: wire}, protocolIPv6
		ctSaddr, ctDaddr = 21, 22 // NFT_CT_SRC_IP6, NFT_CT_DST_IP6
		saddr, daddr = spec{at: 8, field: 8}, spec{at: 24, field: 9}
	}
	number := func(id uint32) kind { return kind{id: id, size: 4, order: native} }
	name := kind{id: typeIfName, size: 16, order: native}
	port := kind{id: typePort, size: 2, order: wire}
	switch x {
	case Saddr:
		return spec{f.String() + " saddr", addr, fromNetwork, saddr.at, network, saddr.field}
	case Daddr:
		return spec{f.String() + " daddr", addr, fromNetwork, daddr.at, network, daddr.field}
	case L4proto:
		return spec{"meta l4proto", kind{id: typeProto, size: 1, order: native}, fromMeta, 16, 0, 0}
	case Sport:
		return spec{"th sport", port, fromTransport, 0, protocolTransport, 1}
	case Dport:
		return spec{"th dport", port, fromTransport, 2, protocolTransport, 2}
	case Iif:
		return spec{"iif", number(typeIface), fromMeta, 4, 0, 0}
	case Oif:
		return spec{"oif", number(typeIface), fromMeta, 5, 0, 0}
	case IifName:
		return spec{"iifname", name, fromMeta, 6, 0, 0} // NFT_META_IIFNAME
	case OifName:
		return spec{"oifname", name, fromMeta, 7, 0, 0} // NFT_META_OIFNAME
	case Priority:
		return spec{"meta priority", number(typeClass), fromMeta, 2, 0, 0}
	case Mark:
		return spec{"meta mark", number(typeMark), fromMeta, 3, 0, 0}
	case CtMark:
		return spec{"ct mark", number(typeMark), fromCt, 3, 0, 0}
	case CtState:
		return spec{"ct state", number(typeOther), fromCt, 0, 0, 0}
	case CtStatus:
		return spec{"ct status", number(typeOther), fromCt, 2, 0, 0}
	case CtDaddr:
		return spec{"ct original " + f.String() + " daddr", addr, fromCt, ctDaddr, 0, 0}
	case CtDport:
		return spec{"ct original proto-dst", port, fromCt, 12, 0, 0} // NFT_CT_PROTO_DST
	case CtReplySaddr:
		return spec{"ct reply " + f.String() + " saddr", addr, fromCt, ctSaddr, 0, 0}
	case CtReplySport:
		return spec{"ct reply proto-src", port, fromCt, 11, 0, 0} // NFT_CT_PROTO_SRC
	case PacketType:
		return spec{"meta pkttype", kind{id: typeOther, size: 1, order: native}, fromMeta, 19, 0, 0} // NFT_META_PKTTYPE
	case Maxseg:
		return spec{"tcp option maxseg size", kind{id: typeInteger, size: 2, order: wire}, fromTCP, 2, 0, 0} // TCPOPT_MSS
	}
	panic("nft: there is no such field")
}

func (x Field) text(f TableFamily) string { return x.spec(f).text }

func (x Field) kind(f TableFamily) kind { return x.spec(f).kind }

func (x Field) load(m *message, f TableFamily, reg, _ int) {
	s := x.spec(f)
	switch s.source {
	case fromNetwork, fromTransport:
		m.expr(listElem, "payload", func() {
			m.Wire32(1, register(reg))       // NFTA_PAYLOAD_DREG
			m.Wire32(2, uint32(s.source)+1)  // NFTA_PAYLOAD_BASE: 1 network, 2 transport
			m.Wire32(3, s.at)                // NFTA_PAYLOAD_OFFSET
			m.Wire32(4, uint32(s.kind.size)) // NFTA_PAYLOAD_LEN
		})
	case fromMeta:
		m.expr(listElem, "meta", func() {
			m.Wire32(1, register(reg)) // NFTA_META_DREG
			m.Wire32(2, s.at)          // NFTA_META_KEY
		})
	case fromCt:
		m.expr(listElem, "ct", func() {
			m.Wire32(1, register(reg)) // NFTA_CT_DREG
			m.Wire32(2, s.at)          // NFTA_CT_KEY
			switch x {
			case CtDaddr, CtDport:
				m.Bytes(3, 0) // NFTA_CT_DIRECTION: IP_CT_DIR_ORIGINAL
			case CtReplySaddr, CtReplySport:
				m.Bytes(3, 1) // IP_CT_DIR_REPLY
			}
		})
	default:
		panic("nft: no rule here reads " + s.text)
	}
}

func (x Field) typeof(u *userdata, f TableFamily) {
	s := x.spec(f)
	switch s.source {
	case fromNetwork, fromTransport:
		u.expr(exprPayload, func() {
			u.uint32(0, s.protocol)
			u.uint32(1, s.field)
		})
	case fromMeta:
		u.expr(exprMeta, func() { u.uint32(0, s.at) })
	case fromTCP:
		u.expr(exprExthdr, func() {
			u.uint32(1, s.at)
			u.uint32(2, 1) // NFT_EXTHDR_OP_TCPOPT
			u.uint32(0, 2) // the value after the kind and the length
		})
	default:
		panic("nft: no set here is declared by " + s.text)
	}
}

// set writes an expression that sets the field to a register's value.
func (x Field) set(m *message, reg int) {
	s := x.spec(IPv4)
	name := "meta"
	key := uint16(2)
	sreg := uint16(3) // NFTA_META_KEY, NFTA_META_SREG
	switch s.source {
	case fromCt:
		name, sreg = "ct", 4 // NFTA_CT_SREG
	case fromTCP:
		m.expr(listElem, "exthdr", func() {
			m.Wire32(7, register(reg)) // NFTA_EXTHDR_SREG
			m.Bytes(2, byte(s.at))     // NFTA_EXTHDR_TYPE
			m.Wire32(3, 2)             // NFTA_EXTHDR_OFFSET
			m.Wire32(4, 2)             // NFTA_EXTHDR_LEN
			m.Wire32(6, 1)             // NFTA_EXTHDR_OP: NFT_EXTHDR_OP_TCPOPT
		})
		return
	}
	m.expr(listElem, name, func() {
		m.Wire32(key, s.at)
		m.Wire32(sreg, register(reg))
	})
}
