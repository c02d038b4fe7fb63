package iptables

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"

	"vipd/balancer"
)

// path is the bit string by which the dispatch tree finds a frontend. It consists of the address, a
// byte for the protocol, and the port. Rules can match a prefix of the address, or the whole
// address and protocol with a prefix of the port.
type path struct {
	bits [19]byte
	// addr is the length of the address in bits, 32 or 128. len is the number of significant bits.
	addr, len int
}

const (
	protoBits = 8
	portBits  = 16
)

// protocols returns the protocols in the order of their numbers in paths.
func protocols() []balancer.Protocol {
	return []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP}
}

func pathOf(k balancer.Key) path {
	p := path{addr: k.Addr.BitLen()}
	n := copy(p.bits[:], k.Addr.AsSlice())
	for i, proto := range protocols() {
		if proto == k.Proto {
			p.bits[n] = byte(i)
		}
	}
	p.bits[n+1], p.bits[n+2] = byte(k.Port>>8), byte(k.Port)
	p.len = p.addr + protoBits + portBits
	return p
}

// key returns the key whose whole path is p.
func (p path) key() balancer.Key {
	addr, _ := netip.AddrFromSlice(p.bits[:p.addr/8])
	return balancer.Key{Addr: addr, Port: balancer.PortRange(p.port()), Proto: p.proto()}
}

func (p path) proto() balancer.Protocol { return protocols()[p.bits[p.addr/8]] }

func (p path) port() uint16 {
	n := p.addr / 8
	return uint16(p.bits[n+1])<<8 | uint16(p.bits[n+2])
}

// prefix returns the first n bits of p, or fewer if no rule can match exactly n.
func (p path) prefix(n int) path {
	n = min(n, p.len)
	if p.skips(n) {
		n = p.addr
	}
	for i := range p.bits {
		switch {
		case n >= 8*(i+1):
		case n <= 8*i:
			p.bits[i] = 0
		default:
			p.bits[i] &= 0xff << (8*(i+1) - n)
		}
	}
	p.len = n
	return p
}

// skips reports whether no rule can match exactly n bits, because they end within the protocol.
func (p path) skips(n int) bool { return n > p.addr && n < p.addr+protoBits }

// covers reports whether p is a prefix of q.
func (p path) covers(q path) bool { return p.len <= q.len && q.prefix(p.len) == p }

// common returns the length of the longest common prefix of p and q.
func (p path) common(q path) int {
	n := 0
	for i := range p.bits {
		if d := p.bits[i] ^ q.bits[i]; d != 0 {
			n += bits.LeadingZeros8(d)
			break
		}
		n += 8
	}
	return min(n, p.len, q.len)
}

// match returns a rule's match for destinations with the prefix p. The rule only sees destinations
// with the prefix within.
func (p path) match(within path) string {
	text := ""
	if within.len < p.addr {
		addr, _ := netip.AddrFromSlice(p.bits[:p.addr/8])
		text = "-d " + netip.PrefixFrom(addr, min(p.len, p.addr)).String() + " "
	}
	if p.len <= p.addr {
		return text
	}
	text += "-p " + string(p.proto()) + " "
	if p.len == p.addr+protoBits {
		return text
	}
	low := p.port()
	high := low | uint16(1<<(p.addr+protoBits+portBits-p.len)-1)
	ports := strconv.Itoa(int(low))
	if high != low {
		ports += ":" + strconv.Itoa(int(high))
	}
	return text + fmt.Sprintf("-m %s --dport %s ", p.proto(), ports)
}
