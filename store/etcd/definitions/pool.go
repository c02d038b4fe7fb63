package definitions

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/store/etcd/schema"
)

// DefaultPool is the pool of "auto".
const DefaultPool = "default"

// pool holds the addresses that services can get.
type pool struct {
	name     string
	revision int64
	cidrs    []netip.Prefix
	// wrong is the reason why the pool is unusable, or "".
	wrong string
	// fields holds all fields of the pool.
	fields map[string]any
}

// with returns the pool's text with its networks replaced by cidrs.
func (p *pool) with(cidrs []netip.Prefix) ([]byte, error) {
	fields := maps.Clone(p.fields)
	if fields == nil {
		fields = map[string]any{}
	}
	fields["cidrs"] = cidrs
	return schema.Encode(fields)
}

// maxOfCIDR is the maximum number of addresses that a pool uses from one network. Services never
// hold that many addresses, and the limit avoids overflows.
const maxOfCIDR = 1 << 48

// checkCIDRs returns the mistake in a pool's networks, or nil.
func checkCIDRs(cidrs []netip.Prefix) error {
	if len(cidrs) == 0 {
		return fmt.Errorf(`needs at least one network, such as "10.96.0.0/24"`)
	}
	multicast := []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}
	for i, c := range cidrs {
		if !c.IsValid() || c.Addr().Zone() != "" || c.Addr().Is4In6() || c != c.Masked() {
			return fmt.Errorf("%s is not a network: did you mean %s?", c, c.Masked())
		}
		for _, m := range multicast {
			if c.Overlaps(m) {
				return fmt.Errorf("%s contains multicast addresses, which can't be VIPs: name another network", c)
			}
		}
		for _, other := range cidrs[:i] {
			if c.Overlaps(other) {
				return fmt.Errorf("%s and %s overlap: remove one of them", other, c)
			}
		}
	}
	return nil
}

// decodePool decodes a pool. If the pool is unusable, wrong is set.
func decodePool(name string, text []byte, revision int64) *pool {
	p := &pool{name: name, revision: revision}
	if len(text) > schema.MaxEntryText {
		p.wrong = fmt.Sprintf("has %d bytes; at most %d are allowed", len(text), schema.MaxEntryText)
		return p
	}
	fields, err := schema.ParseObject(text)
	if err != nil {
		p.wrong = "the value " + err.Error()
		return p
	}
	p.fields = fields
	var f balancer.Pool
	var wrong []string
	for _, problem := range decode.Into(&f, fields) {
		if !problem.Unknown {
			wrong = append(wrong, problem.Path+": "+problem.Text)
		}
	}
	if err := checkCIDRs(f.CIDRs); err != nil && wrong == nil {
		wrong = append(wrong, "cidrs: "+err.Error())
	}
	p.cidrs, p.wrong = slices.DeleteFunc(f.CIDRs, func(c netip.Prefix) bool { return !c.IsValid() }), strings.Join(wrong, "; ")
	return p
}

// holds reports whether an address is in the pool.
func (p *pool) holds(a netip.Addr) bool {
	return slices.ContainsFunc(p.cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
}

// overlaps reports whether the pools share an address.
func (p *pool) overlaps(other *pool) bool {
	return slices.ContainsFunc(p.cidrs, func(c netip.Prefix) bool { return slices.ContainsFunc(other.cidrs, c.Overlaps) })
}

// usable returns how many addresses in a network can be allocated, and the index of the first.
// Unless the network has at most two addresses, it omits the network's own address and, for IPv4,
// the broadcast address.
func usable(c netip.Prefix) (n, first uint64) {
	bits := c.Addr().BitLen() - c.Bits()
	switch {
	case bits >= 48:
		return maxOfCIDR - 1, 1
	case bits < 2:
		return 1 << bits, 0
	case c.Addr().Is4():
		return 1<<bits - 2, 1
	}
	return 1<<bits - 1, 1
}

// size returns the number of addresses that the pool can allocate.
func (p *pool) size() (n uint64) {
	for _, c := range p.cidrs {
		addresses, _ := usable(c)
		n += addresses
	}
	return n
}

// at returns the i-th address that the pool can allocate.
func (p *pool) at(i uint64) netip.Addr {
	for _, c := range p.cidrs {
		n, first := usable(c)
		if i < n {
			return plus(c.Addr(), first+i)
		}
		i -= n
	}
	return netip.Addr{}
}

// gives reports whether the pool can allocate an address.
func (p *pool) gives(a netip.Addr) bool {
	for _, c := range p.cidrs {
		if n, first := usable(c); c.Contains(a) {
			return a.Compare(plus(c.Addr(), first)) >= 0 && a.Compare(plus(c.Addr(), first+n-1)) <= 0
		}
	}
	return false
}

// plus returns the address n after a. The network that contains a must be large enough.
func plus(a netip.Addr, n uint64) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	return netip.AddrFrom16(b)
}

// pick returns an address in the pool that is not taken, or the zero Addr. The first candidate
// depends on the service's name and the attempt, so concurrent writers rarely choose the same
// address.
func (p *pool) pick(service balancer.Name, attempt int, taken func(netip.Addr) bool) netip.Addr {
	size := p.size()
	if size == 0 {
		return netip.Addr{}
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%d", p.name, service, attempt)
	begin := h.Sum64() % size
	for i := range size { // the number of taken addresses limits this loop
		if a := p.at((begin + i) % size); !taken(a) {
			return a
		}
	}
	return netip.Addr{}
}
