package guard

import (
	"net/netip"
	"slices"

	"vipd/dataplane/internal/inet"
)

// maxCover is how many networks cover the addresses of one family: each is one more comparison for every packet.
const maxCover = 4

// cover is a few networks that contain the addresses in some sets, so that packets for others are told apart at the cost of a
// comparison. It follows what is added, and shrinks only when it is told to: addresses come and go more often than networks.
type cover []netip.Prefix

// lacks reports whether addresses that the sets shall hold, and were not asked to before, are outside.
func (c cover) lacks(sets ...*members) bool {
	for _, m := range sets {
		for e := range m.dirty {
			if m.count[e] > 0 && !slices.ContainsFunc(c, func(p netip.Prefix) bool { return p.Contains(e.Addr) }) {
				return true
			}
		}
	}
	return false
}

// coverOf returns the networks that contain what sets hold or shall hold, and as little else as possible.
func coverOf(sets ...*members) cover {
	var addrs []netip.Addr
	for _, m := range sets {
		for e := range m.count {
			addrs = append(addrs, e.Addr)
		}
		for e := range m.have {
			addrs = append(addrs, e.Addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return covering(slices.Compact(addrs))
}

// covering returns at most maxCover networks that contain all of the addresses, which are sorted and of one family. It
// cuts where neighbours have the least in common: what the networks contain besides is least that way.
func covering(addrs []netip.Addr) []netip.Prefix {
	if len(addrs) == 0 {
		return nil
	}
	var cuts [maxCover - 1]int // positions of the second of two neighbours, by how little they share; 0 means none
	shared := func(i int) int { return inet.CommonBits(addrs[i-1], addrs[i]) }
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
			shared := inet.CommonBits(addrs[first], addrs[end-1])
			out = append(out, netip.PrefixFrom(addrs[first], shared).Masked())
			first = end
		}
	}
	return out
}
