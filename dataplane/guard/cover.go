package guard

import (
	"maps"
	"math/bits"
	"net/netip"
	"slices"
)

// maxCover is how many networks cover the addresses of one family: each is one more comparison for every packet.
const maxCover = 4

// cover keeps a few networks that contain some addresses, so that packets for others are told apart at the cost of a
// comparison. It follows what is added, and shrinks only when it is told to: addresses come and go more often than
// networks.
type cover struct {
	count    map[netip.Addr]int
	prefixes []netip.Prefix
	// fresh were counted for the first time since the last look.
	fresh []netip.Addr
}

func newCover() *cover { return &cover{count: map[netip.Addr]int{}} }

// want changes by how many an address is wanted.
func (c *cover) want(a netip.Addr, by int) {
	if c.count[a] == 0 && by > 0 {
		c.fresh = append(c.fresh, a)
	}
	if c.count[a] += by; c.count[a] <= 0 {
		delete(c.count, a)
	}
}

// exceeded reports whether addresses were added since it was asked last that the networks do not contain.
func (c *cover) exceeded() bool {
	outside := false
	for _, a := range c.fresh {
		outside = outside || c.count[a] > 0 && !c.contains(a)
	}
	c.fresh = c.fresh[:0]
	return outside
}

// fit makes the networks contain what is wanted, and others, and as little else as possible. It reports whether they are
// others now.
func (c *cover) fit(others func(yield func(netip.Addr) bool)) bool {
	addrs := slices.AppendSeq(slices.Collect(maps.Keys(c.count)), others)
	slices.SortFunc(addrs, netip.Addr.Compare)
	old := c.prefixes
	c.prefixes = covering(slices.Compact(addrs))
	return !slices.Equal(old, c.prefixes)
}

func (c *cover) contains(a netip.Addr) bool {
	for _, p := range c.prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// covering returns at most maxCover networks that contain all of the addresses, which are sorted and of one family. It
// cuts where neighbours have the least in common: what the networks contain besides is least that way.
func covering(addrs []netip.Addr) []netip.Prefix {
	if len(addrs) == 0 {
		return nil
	}
	var cuts [maxCover - 1]int // positions of the second of two neighbours, by how little they share; 0: none
	shared := func(i int) int { return commonBits(addrs[i-1], addrs[i]) }
	for i := 1; i < len(addrs); i++ {
		for j, at := 0, i; j < len(cuts); j++ {
			if cuts[j] == 0 || shared(at) < shared(cuts[j]) {
				cuts[j], at = at, cuts[j]
			}
			if at == 0 {
				break
			}
		}
	}
	slices.Sort(cuts[:])
	var out []netip.Prefix
	first := 0
	for _, end := range append(cuts[:], len(addrs)) {
		if end > first {
			shared := commonBits(addrs[first], addrs[end-1])
			out = append(out, netip.PrefixFrom(addrs[first], shared).Masked())
			first = end
		}
	}
	return out
}

// commonBits is the number of leading bits that two addresses of one family share.
func commonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if x[i] != y[i] {
			return 8*i + bits.LeadingZeros8(x[i]^y[i])
		}
	}
	return a.BitLen()
}
