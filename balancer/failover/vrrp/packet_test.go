package vrrp_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"vipd/balancer/failover/vrrp"
)

// recorded contains messages that keepalived 2.2.7 has sent, with the adverts in them.
var recorded = []struct {
	name, from, to, message string
	sum                     vrrp.Checksum
	want                    vrrp.Advert
}{
	{
		name: "version 3", from: "10.9.0.1", to: "224.0.0.18", message: "313396020014393e0a0900640a090065", sum: vrrp.Pseudo,
		want: vrrp.Advert{Version: 3, RouterID: 51, Priority: 150, Interval: 200 * time.Millisecond, Addrs: addrs("10.9.0.100", "10.9.0.101")},
	},
	{
		name: "version 3 resigns", from: "10.9.0.1", to: "224.0.0.18", message: "313300020014cf3e0a0900640a090065", sum: vrrp.Pseudo,
		want: vrrp.Advert{Version: 3, RouterID: 51, Interval: 200 * time.Millisecond, Addrs: addrs("10.9.0.100", "10.9.0.101")},
	},
	{
		name: "version 3 to a peer", from: "10.9.0.1", to: "10.9.0.2", message: "31339601001419b90a090064", sum: vrrp.Pseudo,
		want: vrrp.Advert{Version: 3, RouterID: 51, Priority: 150, Interval: 200 * time.Millisecond, Addrs: addrs("10.9.0.100")},
	},
	{
		name: "version 2", from: "10.9.0.1", to: "224.0.0.18", message: "2133960100013e5d0a0900640000000000000000", sum: vrrp.Plain,
		want: vrrp.Advert{Version: 2, RouterID: 51, Priority: 150, Interval: time.Second, Addrs: addrs("10.9.0.100")},
	},
	{
		name: "version 2 with a password", from: "10.9.0.1", to: "224.0.0.18", message: "21339601010101110a0900647365637265740000", sum: vrrp.Plain,
		want: vrrp.Advert{Version: 2, RouterID: 51, Priority: 150, Interval: time.Second, Addrs: addrs("10.9.0.100"), Auth: vrrp.SimpleAuth, Password: "secret"},
	},
	{
		name: "IPv6", from: "fe80::ff:fe00:1", to: "ff02::12", sum: vrrp.Pseudo,
		message: "3133960200640cfdfe80000000000000000000000000010020010db8000000000000000000000100",
		want:    vrrp.Advert{Version: 3, RouterID: 51, Priority: 150, Interval: time.Second, Addrs: addrs("fe80::100", "2001:db8::100")},
	},
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// TestAdvertsOfKeepalived decodes the recorded messages, and encodes the results. The encoded bytes
// must equal the recorded bytes.
func TestAdvertsOfKeepalived(t *testing.T) {
	for _, r := range recorded {
		message, err := hex.DecodeString(r.message)
		if err != nil {
			t.Fatal(err)
		}
		from, to := netip.MustParseAddr(r.from), netip.MustParseAddr(r.to)
		got, sum, err := vrrp.Decode(message, from, to)
		if err != nil || sum != r.sum || !reflect.DeepEqual(*got, r.want) {
			t.Errorf("%s: Decode = %+v, %q, %v, want %+v, %q", r.name, got, sum, err, r.want, r.sum)
			continue
		}
		if again := got.Append(nil, from, to, sum); !bytes.Equal(again, message) {
			t.Errorf("%s: Append = %x, want %x", r.name, again, message)
		}
		for n := range message {
			var drop *vrrp.DropError
			if _, _, err := vrrp.Decode(message[:n], from, to); !errors.As(err, &drop) || drop.Reason != vrrp.Short {
				t.Errorf("%s, first %d bytes: error = %v, want the reason %q", r.name, n, err, vrrp.Short)
			}
		}
	}
}

// TestChecksumKinds encodes an advert with each kind of checksum. Decode must recognise the kind of
// the checksum. In a multicast packet, OldUnicast is the same as Pseudo.
func TestChecksumKinds(t *testing.T) {
	from, peer, all := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2"), vrrp.MulticastGroup(true)
	a := vrrp.Advert{Version: 3, RouterID: 51, Priority: 150, Interval: time.Second, Addrs: addrs("10.9.0.100")}
	for _, c := range []struct {
		sum  vrrp.Checksum
		to   netip.Addr
		want vrrp.Checksum
	}{
		{sum: vrrp.Plain, to: all, want: vrrp.Plain},
		{sum: vrrp.Pseudo, to: all, want: vrrp.Pseudo},
		{sum: vrrp.OldUnicast, to: all, want: vrrp.Pseudo}, // in multicast packets, the same as Pseudo
		{sum: vrrp.Plain, to: peer, want: vrrp.Plain},
		{sum: vrrp.Pseudo, to: peer, want: vrrp.Pseudo},
		{sum: vrrp.OldUnicast, to: peer, want: vrrp.OldUnicast},
	} {
		if _, sum, err := vrrp.Decode(a.Append(nil, from, c.to, c.sum), from, c.to); sum != c.want || err != nil {
			t.Errorf("checksum %q to %s: decoded kind = %q, %v, want %q", c.sum, c.to, sum, err, c.want)
		}
	}
}

// TestDroppedMessages changes recorded adverts so that they are invalid, or damages their encoded
// bytes. Decode must return the expected reason for each message.
func TestDroppedMessages(t *testing.T) {
	v3, v2 := recorded[0], recorded[3]
	for _, c := range []struct {
		name   string
		change func(*vrrp.Advert)
		damage func(b []byte)
		want   vrrp.Reason
	}{
		{name: "version 4", change: func(a *vrrp.Advert) { a.Version = 4 }, want: vrrp.WrongVersion},
		{name: "type 2", damage: func(b []byte) { b[0]++ }, want: vrrp.WrongVersion},
		{name: "another priority", damage: func(b []byte) { b[2]++ }, want: vrrp.WrongChecksum},
		{name: "no address", change: func(a *vrrp.Advert) { a.Addrs = nil }, want: vrrp.WrongList},
		{name: "interval 0", change: func(a *vrrp.Advert) { a.Interval = 0 }, want: vrrp.WrongInterval},
		{name: "more addresses than bytes", damage: func(b []byte) { b[3]++ }, want: vrrp.Short},
	} {
		for _, r := range []vrrp.Advert{v3.want, v2.want} {
			if c.change != nil {
				c.change(&r)
			}
			from, to := netip.MustParseAddr(v3.from), netip.MustParseAddr(v3.to)
			b := r.Append(nil, from, to, vrrp.Plain)
			if c.damage != nil {
				c.damage(b)
			}
			var drop *vrrp.DropError
			if _, _, err := vrrp.Decode(b, from, to); !errors.As(err, &drop) || drop.Reason != c.want {
				t.Errorf("%s, version %d: error = %v, want the reason %q", c.name, r.Version, err, c.want)
			}
		}
	}
	six := netip.MustParseAddr("fe80::1")
	a := vrrp.Advert{Version: 2, RouterID: 1, Priority: 1, Interval: time.Second, Addrs: addrs("fe80::2")}
	var drop *vrrp.DropError
	if _, _, err := vrrp.Decode(a.Append(nil, six, six, vrrp.Plain), six, six); !errors.As(err, &drop) || drop.Reason != vrrp.WrongVersion {
		t.Errorf("version 2 over IPv6: error = %v, want the reason %q", err, vrrp.WrongVersion)
	}
}

// TestOddMessages sets the reserved bits of a message of version 3, and appends bytes to it. Decode
// must ignore both.
func TestOddMessages(t *testing.T) {
	r := recorded[0]
	from, to := netip.MustParseAddr(r.from), netip.MustParseAddr(r.to)
	b := r.want.Append(nil, from, to, vrrp.Plain)
	b[4] |= 0xf0
	binary.BigEndian.PutUint16(b[6:], binary.BigEndian.Uint16(b[6:])+0x0fff) // corrects the checksum for the reserved bits 0xf000: in one's complement, 0x0fff is -0xf000
	if got, _, err := vrrp.Decode(append(b, "trailer"...), from, to); err != nil || !reflect.DeepEqual(*got, r.want) {
		t.Errorf("message with reserved bits and trailing bytes: Decode = %+v, %v, want %+v", got, err, r.want)
	}
}

// FuzzDecode decodes arbitrary messages. Decode must not panic. If a message is accepted, encoding
// and decoding its advert must return the same advert.
func FuzzDecode(f *testing.F) {
	for _, r := range recorded {
		message, err := hex.DecodeString(r.message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message, r.from == "10.9.0.1", r.to == "10.9.0.2")
		r.want.Priority, r.want.Addrs = 255, append(r.want.Addrs, r.want.Addrs...)
		f.Add(r.want.Append(nil, netip.MustParseAddr(r.from), netip.MustParseAddr(r.to), vrrp.Plain), r.from == "10.9.0.1", false)
	}
	f.Fuzz(func(t *testing.T, message []byte, is4, unicast bool) {
		from, to := netip.MustParseAddr("fe80::ff:fe00:1"), vrrp.MulticastGroup(is4)
		if is4 {
			from = netip.MustParseAddr("10.9.0.1")
		}
		if unicast {
			to = from.Next()
		}
		a, sum, err := vrrp.Decode(message, from, to)
		if err != nil {
			_, ok := errors.AsType[*vrrp.DropError](err)
			if !ok || a != nil {
				t.Fatalf("Decode = %v, %v, want either an advert or a DropError", a, err)
			}
			return
		}
		again, _, err := vrrp.Decode(a.Append(nil, from, to, sum), from, to)
		if err != nil || !reflect.DeepEqual(again, a) {
			t.Fatalf("after encoding: Decode = %+v, %v, want %+v", again, err, a)
		}
	})
}
