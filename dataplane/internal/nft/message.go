package nft

import "encoding/binary"

// message writes netlink messages of nf_tables one behind the other.
type message struct {
	b     []byte
	nests []int // where open nests begin
	start int   // where the last message begins
	seq   uint32
}

// open begins a message.
func (m *message) open(kind, flags int, family Family) {
	m.header(subsystem<<8|kind, flags, byte(family), 0)
}

func (m *message) header(kind, flags int, family byte, resource uint16) {
	m.start = len(m.b)
	m.b = binary.NativeEndian.AppendUint32(m.b, 0)
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(kind))
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(flagRequest|flags))
	m.b = binary.NativeEndian.AppendUint32(m.b, m.seq)
	m.b = binary.NativeEndian.AppendUint32(m.b, 0)
	m.b = append(m.b, family, 0) // version 0
	m.b = binary.BigEndian.AppendUint16(m.b, resource)
	m.seq++
}

// close ends the message that open began.
func (m *message) close() {
	binary.NativeEndian.PutUint32(m.b[m.start:], uint32(len(m.b)-m.start))
}

// ask makes the kernel acknowledge the last message.
func (m *message) ask() {
	at := m.b[m.start+6:]
	binary.NativeEndian.PutUint16(at, binary.NativeEndian.Uint16(at)|flagAck)
}

// bytes writes an attribute.
func (m *message) bytes(kind int, v []byte) {
	m.attribute(kind, len(v))
	m.b = append(m.b, v...)
	m.pad()
}

// string writes an attribute with the terminating zero that the kernel expects.
func (m *message) string(kind int, s string) {
	m.attribute(kind, len(s)+1)
	m.b = append(m.b, s...)
	m.b = append(m.b, 0)
	m.pad()
}

func (m *message) uint32(kind int, v uint32) {
	m.attribute(kind, 4)
	m.b = binary.BigEndian.AppendUint32(m.b, v)
}

func (m *message) uint64(kind int, v uint64) {
	m.attribute(kind, 8)
	m.b = binary.BigEndian.AppendUint64(m.b, v)
}

func (m *message) attribute(kind, size int) {
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(4+size))
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(kind))
}

func (m *message) pad() {
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
}

// nest writes an attribute whose value is what inside writes. It holds 64 KiB at most.
func (m *message) nest(kind int, inside func()) {
	m.openNest(kind)
	inside()
	m.closeNest()
}

func (m *message) openNest(kind int) {
	m.nests = append(m.nests, len(m.b))
	m.attribute(kind|attrNested, 0)
}

func (m *message) closeNest() {
	at := m.nests[len(m.nests)-1]
	m.nests = m.nests[:len(m.nests)-1]
	binary.NativeEndian.PutUint16(m.b[at:], uint16(len(m.b)-at))
}

// nested is the size of the innermost open nest so far.
func (m *message) nested() int { return len(m.b) - m.nests[len(m.nests)-1] }

// value writes a constant as nf_tables wants data: nested in kind.
func (m *message) value(kind int, v []byte) {
	m.openNest(kind)
	m.bytes(dataValue, v)
	m.closeNest()
}

// verdict writes a verdict as nf_tables wants data: nested in kind.
func (m *message) verdict(kind int, code uint32, chain string) {
	m.openNest(kind)
	m.openNest(dataVerdict)
	m.uint32(verdictCode, code)
	if chain != "" {
		m.string(verdictChain, chain)
	}
	m.closeNest()
	m.closeNest()
}

// expr writes one expression of a rule or set.
func (m *message) expr(kind int, name string, data func()) {
	m.openNest(kind)
	m.string(exprName, name)
	m.nest(exprData, data)
	m.closeNest()
}

// register is the kernel's number of the 32-bit register i.
func register(i int) uint32 { return uint32(reg32 + i) }
