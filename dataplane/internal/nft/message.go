package nft

import "vipd/dataplane/internal/nlsock"

// message writes a sequence of netlink messages of nf_tables.
type message struct {
	nlsock.Writer
	seq uint32
	// echo reports whether the kernel must return deleted elements of sets with counters.
	echo bool
}

func (m *message) open(kind, flags int, family TableFamily) {
	m.header(subsystem<<8|kind, flags, byte(family), 0)
}

// header starts a message with its nfgenmsg. In this package, every resource id fits in a byte.
func (m *message) header(kind, flags int, family, resource byte) {
	m.Begin(uint16(kind), uint16(flags), m.seq, family, 0, 0, resource) // version 0
	m.seq++
}

// nest writes an attribute that contains the attributes written by inside. It holds at most 64 KiB.
func (m *message) nest(kind uint16, inside func()) {
	m.Nest(kind)
	inside()
	m.Unnest()
}

// value writes a constant as nf_tables data, nested in the attribute kind.
func (m *message) value(kind uint16, v []byte) {
	m.Nest(kind)
	m.Bytes(dataValue, v...)
	m.Unnest()
}

// verdict writes a verdict as nf_tables data, nested in the attribute kind.
func (m *message) verdict(kind uint16, code uint32, chain string) {
	m.Nest(kind)
	m.Nest(dataVerdict)
	m.Wire32(verdictCode, code)
	if chain != "" {
		m.String(verdictChain, chain)
	}
	m.Unnest()
	m.Unnest()
}

// expr writes a rule's or set's expression.
func (m *message) expr(kind uint16, name string, data func()) {
	m.Nest(kind)
	m.String(exprName, name)
	m.nest(exprData, data)
	m.Unnest()
}

// register returns the kernel's number for the 32-bit register i.
func register(i int) uint32 { return uint32(reg32 + i) }
