package quorum_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
)

func nodes(n int) []balancer.NodeName {
	var all []balancer.NodeName
	for i := range n {
		all = append(all, balancer.NodeName(fmt.Sprintf("host%d", i+1)))
	}
	return all
}

// places returns n addresses with ports that resemble the endpoints of a fleet: consecutive
// addresses in several networks, with few different ports.
func places(n int) []netip.AddrPort {
	var all []netip.AddrPort
	for i := range n {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), uint16(8080+i%3)))
	}
	return all
}

// TestCheckersSpread chooses the nodes that check each of many addresses. Each address must have
// three checkers, or all nodes if there are fewer. Each node must check about the same number of
// addresses. If a node leaves, only the addresses that it checked may get another checker, and only
// one.
func TestCheckersSpread(t *testing.T) {
	const targets = 10_000
	for _, n := range []int{0, 1, 2, 3, 5, 10, 50, 200} {
		all := nodes(n)
		size := min(n, quorum.Size)
		load, moved := map[balancer.NodeName]int{}, 0
		var left balancer.NodeName
		if n > 0 {
			left = all[n/2]
		}
		for _, at := range places(targets) {
			checkers := quorum.Checkers(at, all)
			if len(checkers) != size || len(slices.Compact(slices.Sorted(slices.Values(checkers)))) != size {
				t.Fatalf("%d nodes: checkers of %s = %v, want %d different nodes", n, at, checkers, size)
			}
			for _, c := range checkers {
				load[c]++
			}
			without := slices.DeleteFunc(slices.Clone(all), func(m balancer.NodeName) bool { return m == left })
			rest := slices.DeleteFunc(slices.Clone(checkers), func(m balancer.NodeName) bool { return m == left })
			after := quorum.Checkers(at, without)
			if !slices.Equal(after[:len(rest)], rest) {
				t.Fatalf("%d nodes: checkers of %s after %s left = %v, want %v first", n, at, left, after, rest)
			}
			if len(rest) < size {
				moved++
			}
		}
		for _, node := range all {
			share := float64(size) / float64(n)
			mean, sigma := share*targets, math.Sqrt(targets*share*(1-share))
			if got := float64(load[node]); math.Abs(got-mean) > 5*sigma {
				t.Errorf("%d nodes: %s checks %.0f of %d addresses, want %.0f plus or minus %.0f", n, node, got, targets, mean, 5*sigma)
			}
		}
		if n > 0 && moved != load[left] {
			t.Errorf("%d nodes: after a node left, addresses with a new checker = %d, want %d, as many as the node checked", n, moved, load[left])
		}
	}
}

// TestCheckersNeverChange compares the chosen checkers with recorded choices, for two orders of the
// nodes. The choice must depend only on the nodes' names and on the address, and must be the same
// in all versions of vipd.
func TestCheckersNeverChange(t *testing.T) {
	for at, want := range map[string]string{
		"192.168.1.11:8080": "[host20 host10 host8]",
		"[fd00::1]:53":      "[host6 host10 host2]",
		"127.0.0.1:1":       "[host8 host19 host4]",
	} {
		all := nodes(20)
		got := fmt.Sprint(quorum.Checkers(netip.MustParseAddrPort(at), all))
		slices.Reverse(all)
		if again := fmt.Sprint(quorum.Checkers(netip.MustParseAddrPort(at), all)); got != want || again != got {
			t.Errorf("%s: checkers = %s, with the nodes in reverse order = %s, want %s", at, got, again, want)
		}
	}
}
