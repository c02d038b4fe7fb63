package nlsock

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// part describes a message or an attribute.
type part struct {
	kind, flags uint16
	seq         uint32
	value       []byte
}

func someParts(r *rand.Rand) []part {
	all := make([]part, r.IntN(6))
	for i := range all {
		value := make([]byte, r.IntN(11))
		for j := range value {
			value[j] = byte(r.Uint32())
		}
		all[i] = part{uint16(r.Uint32()) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), uint16(r.Uint32()), r.Uint32(), value}
	}
	return all
}

func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func message(b []byte, p part) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(p.value)))
	b = binary.NativeEndian.AppendUint16(b, p.kind)
	b = binary.NativeEndian.AppendUint16(b, p.flags)
	b = binary.NativeEndian.AppendUint32(b, p.seq)
	b = binary.NativeEndian.AppendUint32(b, 99) // readers ignore the port ID
	return append(b, p.value...)
}

func attribute(b []byte, p part) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(p.value)))
	b = binary.NativeEndian.AppendUint16(b, p.kind|p.flags&(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER))
	return append(b, p.value...)
}

// written writes a sequence of parts with write. ends contains the offset at which each part ends,
// without and with padding.
func written(parts []part, write func([]byte, part) []byte) (b []byte, ends [][2]int) {
	for _, p := range parts {
		b = write(b, p)
		least := len(b)
		b = pad(b)
		ends = append(ends, [2]int{least, len(b)})
	}
	return b, ends
}

// whole returns the number of complete parts in the first n bytes. even reports whether there is no
// incomplete part.
func whole(ends [][2]int, n int) (parts int, even bool) {
	even = n == 0
	for _, e := range ends {
		if n >= e[0] {
			parts, even = parts+1, n <= e[1]
		}
	}
	return parts, even
}

// TestReadsWhatWasWritten reads complete and truncated sequences of parts. All complete parts must
// be returned. A truncated part must cause an error.
func TestReadsWhatWasWritten(t *testing.T) {
	for seed := range uint64(100) {
		parts := someParts(rand.New(rand.NewPCG(seed, 0)))
		b, ends := written(parts, message)
		for n := range len(b) + 1 {
			want, even := whole(ends, n)
			m, got := Read(b[:n]), 0
			for ; m.Next(); got++ {
				if p := parts[got]; m.Kind != p.kind || m.Flags != p.flags || m.Seq != p.seq || !bytes.Equal(m.Body, p.value) {
					t.Fatalf("seed %d: message %d = %+v, want %+v", seed, got, m, p)
				}
			}
			if got != want || (m.Err == nil) != even || m.Err != nil && !errors.Is(m.Err, ErrMalformed) || m.Next() || even != m.Empty() {
				t.Fatalf("seed %d: messages = %d in the first %d bytes of %v, error = %v; want %d messages, success = %t", seed, got, n, parts, m.Err, want, even)
			}
		}
		b, ends = written(parts, attribute)
		for n := range len(b) + 1 {
			want, even := whole(ends, n)
			a, got := In(b[:n]), 0
			for ; a.Next(); got++ {
				if p := parts[got]; a.Kind != p.kind || !bytes.Equal(a.Value, p.value) {
					t.Fatalf("seed %d: attribute %d = %+v, want %+v", seed, got, a, p)
				}
			}
			if got != want || (a.Err == nil) != even || a.Err != nil && !errors.Is(a.Err, ErrMalformed) || a.Next() || even != (len(a.Rest()) == 0) {
				t.Fatalf("seed %d: attributes = %d in the first %d bytes of %v, error = %v; want %d attributes, success = %t", seed, got, n, parts, a.Err, want, even)
			}
		}
	}
}

// TestRefusesShortLengths reads a length that is smaller than the header. This must be an error,
// because the reader would not advance.
func TestRefusesShortLengths(t *testing.T) {
	for size := range unix.SizeofNlMsghdr {
		b := make([]byte, 64)
		binary.NativeEndian.PutUint32(b, uint32(size))
		if m := Read(b); m.Next() || m.Err == nil {
			t.Errorf("message with length %d: Next() = true, want false and an error", size)
		}
	}
	for size := range unix.SizeofNlAttr {
		b := make([]byte, 64)
		binary.NativeEndian.PutUint16(b, uint16(size))
		if a := In(b); a.Next() || a.Err == nil {
			t.Errorf("attribute with length %d: Next() = true, want false and an error", size)
		}
	}
}

// TestRefusal reads acknowledgements, refusals and malformed messages. Refusal must distinguish
// them.
func TestRefusal(t *testing.T) {
	refused := -int32(unix.EBUSY)
	for _, c := range []struct {
		kind uint16
		body []byte
		want error
	}{
		{unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, 0), nil},
		{unix.NLMSG_ERROR, binary.NativeEndian.AppendUint32(nil, uint32(refused)), syscall.EBUSY},
		{unix.NLMSG_DONE, binary.NativeEndian.AppendUint32(nil, uint32(refused)), syscall.EBUSY},
		{unix.NLMSG_DONE, nil, nil},
		{unix.NLMSG_ERROR, []byte{0, 0, 0}, ErrMalformed},
	} {
		m := Read(message(nil, part{kind: c.kind, value: c.body}))
		if !m.Next() || m.Refusal() != c.want {
			t.Errorf("Refusal() of %+v = %v, want %v", m, m.Refusal(), c.want)
		}
	}
}
