package ipvsnl

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// counters adds the counters of a virtual server or destination to a message. Each counter has size
// bytes, 4 or 8.
func counters(s *socket, kind uint16, size int, first uint64) {
	s.Nest(kind)
	for i := range uint16(5) {
		s.Attribute(statsConnections+i, size)
		v := binary.NativeEndian.AppendUint64(nil, first+uint64(i))
		if size == 4 {
			v = binary.NativeEndian.AppendUint32(nil, uint32(first)+uint32(i))
		}
		s.B = append(s.B, v...)
	}
	s.Unnest()
}

// TestWideCounters reads counters that need more than 32 bits. 32-bit counters must be used only if
// 64-bit counters are missing.
func TestWideCounters(t *testing.T) {
	const beyond = 1 << 40
	for _, c := range []struct {
		wide bool
		want Stats
	}{
		{true, Stats{beyond, beyond + 1, beyond + 2, beyond + 3, beyond + 4}},
		{false, Stats{7, 8, 9, 10, 11}},
	} {
		s := &socket{}
		s.begin(byte(AddService), 0)
		s.Nest(aboutService)
		s.key(key("10.96.0.1:80"))
		counters(s, serviceStats, 4, 7)
		if c.wide {
			counters(s, serviceStats64, 8, beyond)
		}
		s.Unnest()
		s.End()
		got, ok, err := readService(s.B[unix.SizeofNlMsghdr:], nil)
		if !ok || err != nil || got.Stats != c.want || got.Key != key("10.96.0.1:80") {
			t.Errorf("virtual server = %+v, %v, %v; want %+v", got, ok, err, c.want)
		}

		s = &socket{}
		s.begin(byte(AddDestination), 0)
		s.Nest(aboutDestination)
		s.destination(key("[fd00::1]:80"), &Destination{Addr: at4, Forward: "dr", Weight: 65535, Upper: 3, Lower: 2}, false)
		counters(s, destinationStats, 4, 7)
		if c.wide {
			counters(s, destinationStats64, 8, beyond)
		}
		s.Unnest()
		s.End()
		want := DestinationState{Destination: Destination{at4, "dr", 65535, 3, 2}, Stats: c.want}
		if got, err := readDestination(s.B[unix.SizeofNlMsghdr:], key("[fd00::1]:80")); err != nil || got != want {
			t.Errorf("destination = %+v, %v; want %+v", got, err, want)
		}
	}
}

// TestRangeMessages encodes a virtual server for a port range, and its destinations. If the mark is
// known, decoding must return the same values. In a message, port 0 must represent the range's
// first port.
func TestRangeMessages(t *testing.T) {
	k := key("10.96.0.1:8000-8999")
	for _, port := range []uint16{8000, 0, 9000} {
		want := Destination{Addr: netip.AddrPortFrom(at4.Addr(), port), Forward: balancer.NATForward, Weight: 1}
		s := &socket{}
		s.op(&Op{Verb: AddDestination, Service: Service{Key: k}, Destination: want})
		body := s.B[unix.SizeofNlMsghdr:]
		got, err := readDestination(body, k)
		wire, wireErr := readDestination(body, key("10.96.0.1:80"))
		wirePort := map[uint16]uint16{8000: 0, 0: 8000, 9000: 9000}[port]
		if err != nil || wireErr != nil || got.Destination != want || wire.Addr.Port() != wirePort {
			t.Errorf("destination = %+v, %v; port in the message = %d, %v; want %+v and port %d", got, err, wire.Addr.Port(), wireErr, want, wirePort)
		}
		var known marks
		for _, knows := range []bool{false, true} {
			if knows {
				known.note(k)
			}
			if v, ok, err := readService(body, &known); ok != knows || err != nil || ok && v.Key != k {
				t.Errorf("virtual server = %+v, %v, %v; want the key %s: %v", v, ok, err, k, knows)
			}
		}
	}
}

var at4 = at("10.2.0.1:8080")

// FuzzMessages decodes arbitrary messages. Decoding must not panic.
func FuzzMessages(f *testing.F) {
	s := &socket{}
	for _, o := range fleet(1, 1) {
		s.B = s.B[:0]
		s.op(&o)
		f.Add(s.B[unix.SizeofNlMsghdr:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if v, ok, err := readService(body, nil); ok && (err != nil || !plain(v.Key.Addr) && !v.Key.Addr.Is4In6() || v.Key.Proto.Number() == 0) {
			t.Errorf("readService = %+v, %v; want a valid key", v, err)
		}
		if d, err := readDestination(body, key("10.96.0.1:80")); err == nil && !d.Addr.Addr().IsValid() {
			t.Errorf("readDestination = %+v, want a valid address", d)
		}
	})
}
