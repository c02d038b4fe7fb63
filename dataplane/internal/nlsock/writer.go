package nlsock

import (
	"encoding/binary"
	"net/netip"
)

// These constants belong to headers and attributes (include/uapi/linux/netlink.h). Package unix is
// not used, because this file is also built on other systems.
const (
	flagRequest = 1       // NLM_F_REQUEST
	flagAck     = 4       // NLM_F_ACK
	flagNested  = 1 << 15 // NLA_F_NESTED
	alignTo     = 4       // NLA_ALIGNTO
)

// Writer writes a sequence of messages. Begin starts a message, and End completes it. Write
// attributes between these calls. The zero Writer is ready to use.
type Writer struct {
	// B is the output. To discard the output, set B to B[:0].
	B     []byte
	begun int   // start of the last message
	nests []int // starts of the nests that are still open
}

// Begin starts a message of type kind. NLM_F_REQUEST is added to flags. The length of the protocol
// header must be a multiple of 4.
func (w *Writer) Begin(kind, flags uint16, seq uint32, header ...byte) {
	w.begun = len(w.B)
	w.B = append(w.B, 0, 0, 0, 0) // End sets the length
	w.B = binary.NativeEndian.AppendUint16(w.B, kind)
	w.B = binary.NativeEndian.AppendUint16(w.B, flags|flagRequest)
	w.B = binary.NativeEndian.AppendUint32(w.B, seq)
	w.B = append(w.B, 0, 0, 0, 0) // the port, which the kernel sets
	w.B = append(w.B, header...)
}

// End completes the message that Begin started.
func (w *Writer) End() {
	binary.NativeEndian.PutUint32(w.B[w.begun:], uint32(len(w.B)-w.begun))
}

// Ask requests an acknowledgement of the last message.
func (w *Writer) Ask() {
	flags := w.B[w.begun+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|flagAck)
}

// Nest starts an attribute that contains other attributes. It holds at most 64 KiB.
func (w *Writer) Nest(kind uint16) {
	w.nests = append(w.nests, len(w.B))
	w.Attribute(kind|flagNested, 0)
}

// Unnest completes the last attribute that Nest started.
func (w *Writer) Unnest() {
	last := len(w.nests) - 1
	at := w.nests[last]
	w.nests = w.nests[:last]
	binary.NativeEndian.PutUint16(w.B[at:], uint16(len(w.B)-at))
}

// Nested returns the current size of the innermost open nest.
func (w *Writer) Nested() int { return len(w.B) - w.nests[len(w.nests)-1] }

// Attribute writes the header of an attribute. The caller must then append a value of size bytes to
// B.
func (w *Writer) Attribute(kind uint16, size int) {
	w.B = binary.NativeEndian.AppendUint16(w.B, uint16(4+size))
	w.B = binary.NativeEndian.AppendUint16(w.B, kind)
}

func (w *Writer) pad() {
	for len(w.B)%alignTo != 0 {
		w.B = append(w.B, 0)
	}
}

// Bytes writes an attribute with the value v.
func (w *Writer) Bytes(kind uint16, v ...byte) {
	w.Attribute(kind, len(v))
	w.B = append(w.B, v...)
	w.pad()
}

// String writes an attribute with a zero-terminated string.
func (w *Writer) String(kind uint16, s string) {
	w.Attribute(kind, len(s)+1)
	w.B = append(append(w.B, s...), 0)
	w.pad()
}

// Native16 writes an attribute with a number in the machine's byte order.
func (w *Writer) Native16(kind, v uint16) {
	w.Attribute(kind, 2)
	w.B = binary.NativeEndian.AppendUint16(w.B, v)
	w.pad()
}

// Native32 writes an attribute with a number in the machine's byte order.
func (w *Writer) Native32(kind uint16, v uint32) {
	w.Attribute(kind, 4)
	w.B = binary.NativeEndian.AppendUint32(w.B, v)
}

// Wire16 writes an attribute with a number in network byte order.
func (w *Writer) Wire16(kind, v uint16) {
	w.Attribute(kind, 2)
	w.B = binary.BigEndian.AppendUint16(w.B, v)
	w.pad()
}

// Wire32 is like Wire16, for 32 bits.
func (w *Writer) Wire32(kind uint16, v uint32) {
	w.Attribute(kind, 4)
	w.B = binary.BigEndian.AppendUint32(w.B, v)
}

// Wire64 is like Wire16, for 64 bits.
func (w *Writer) Wire64(kind uint16, v uint64) {
	w.Attribute(kind, 8)
	w.B = binary.BigEndian.AppendUint64(w.B, v)
}

// Addr writes an attribute with an address of 4 or 16 bytes.
func (w *Writer) Addr(kind uint16, a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		w.Bytes(kind, b[:]...)
		return
	}
	b := a.As16()
	w.Bytes(kind, b[:]...)
}
