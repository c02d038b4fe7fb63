package conntrack

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nlsock"
)

// encode returns the kernel's message about a flow, without the netlink header. The message
// contains only attributes that programs can also write.
func encode(f *Flow, in where) []byte {
	var w writer
	w.begin(messageNew, 0, 0, family(inet.Of(f.Orig.Src.Addr())))
	w.End()
	w.entry(f, in)
	if f.id != 0 {
		w.Wire32(ctaID, f.id)
	}
	return w.B[unix.SizeofNlMsghdr:]
}

// FuzzRead decodes arbitrary messages. Decoding must not panic. If a decoded flow is encoded and
// decoded again, it must not change.
func FuzzRead(f *testing.F) {
	for i, flow := range randomFlows(rand.New(rand.NewPCG(7, 7)), 20) {
		flow.zone, flow.id = uint16(i%3), uint32(i)
		for _, in := range []where{whole, original, reply} {
			b := encode(&flow, in)
			f.Add(b)
			f.Add(b[:len(b)-3])
			f.Add(b[:len(b)/2])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var first, second Flow
		ours, err := first.read(b)
		if err != nil || !ours {
			return
		}
		if first.Proto == "" || !first.Client().IsValid() || !first.Backend().IsValid() || !first.Frontend().Addr.IsValid() {
			t.Fatalf("flow of %x = %+v, want valid addresses and a protocol", b, first)
		}
		if inet.Of(first.Orig.Src.Addr()) != inet.Of(first.Reply.Dst.Addr()) {
			t.Fatalf("flow of %x = %+v, want addresses of a single family", b, first)
		}
		in := whole
		if first.half {
			in = original
		}
		again := encode(&first, in)
		if ours, err := second.read(again); !ours || err != nil {
			t.Fatalf("encoding %+v as %x: read = %v, %v; want true", first, again, ours, err)
		}
		if identityOf(&first) != identityOf(&second) || first.half != second.half || first.id != second.id {
			t.Fatalf("flow after encoding = %+v, want %+v", second, first)
		}
		var w writer
		w.delete(&first, 1)
		if binary.NativeEndian.Uint32(w.B) != uint32(len(w.B)) || !bytes.Contains(w.B, again[headerSize:headerSize+44]) && !first.half {
			t.Fatalf("delete message for %+v = %x, want the flow's tuple and its length", first, w.B)
		}
	})
}

// TestRefusesMalformedMessages decodes truncated messages. If a message ends within an attribute,
// decoding must return an error.
func TestRefusesMalformedMessages(t *testing.T) {
	flow := randomFlows(rand.New(rand.NewPCG(8, 8)), 1)[0]
	b := encode(&flow, whole)
	var f Flow
	if ours, err := f.read(b); !ours || err != nil || identityOf(&f) != identityOf(&flow) {
		t.Fatalf("flow of %x = %+v, %v, %v; want %+v", b, f, ours, err, flow)
	}
	ends := map[int]bool{} // offsets at which an attribute ends
	for a := (nlsock.In(b[headerSize:])); a.Next(); {
		ends[len(b)-len(a.Rest())] = true
	}
	for n := range len(b) {
		if _, err := f.read(b[:n]); err == nil && !ends[n] {
			t.Errorf("flow decoded from %d of %d bytes = %+v, want an error", n, len(b), f)
		}
	}
}
