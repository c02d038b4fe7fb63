package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd/schema"
)

// vipMove represents a VIP's move from one node to another.
type vipMove struct {
	VIP  netip.Addr `json:"vip"`
	From string     `json:"from"`
	To   string     `json:"to"`
}

// vipGroup is a list of VIPs that move together: a single VIP, or all VIPs in a group.
type vipGroup []ownedVIP

// inGroups returns each owner's VIPs, in groups. It omits VIPs without an owner, and groups whose
// VIPs have different owners, because such a group is moving.
func inGroups(vips []ownedVIP) map[string][]vipGroup {
	byOwner, groups := map[string][]vipGroup{}, map[string]vipGroup{}
	for _, v := range byName(vips) {
		if g := v.Group; g != "" {
			groups[g] = append(groups[g], v)
		} else if v.Owner != "" {
			byOwner[v.Owner] = append(byOwner[v.Owner], vipGroup{v})
		}
	}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		all := groups[g]
		if at := all[0].Owner; at != "" && !slices.ContainsFunc(all, func(v ownedVIP) bool { return v.Owner != at }) {
			byOwner[at] = append(byOwner[at], all)
		}
	}
	return byOwner
}

// canMoveTo reports whether the VIPs can move to the node named in to, and prefer it at least as
// much as their owner. A group has its first VIP's preferences.
func (all vipGroup) canMoveTo(to string) bool {
	first := &all[0]
	return to != first.Owner && failover.Preferred(first.Prefer, to) <= failover.Preferred(first.Prefer, first.Owner) &&
		!slices.ContainsFunc(all, func(v ownedVIP) bool { return !slices.Contains(v.Ready, to) })
}

// balanceMoves returns moves that balance VIPs by the nodes' weights. It moves VIPs as long as
// their new owner will have fewer VIPs, in relation to its weight, than their old owner had. VIPs
// in a group move together, and only to a node that they prefer at least as much.
func balanceMoves(vips []ownedVIP, weights map[string]int) (moves []vipMove) {
	has := map[string]int{}
	for _, v := range vips {
		if v.Owner != "" {
			has[v.Owner]++
		}
	}
	byOwner := inGroups(vips)
	for {
		var from, to string
		at, best := 0, 0.0
		for _, node := range slices.Sorted(maps.Keys(byOwner)) {
			for i, all := range byOwner[node] {
				for _, other := range all[0].Ready {
					if weights[other] == 0 {
						continue
					}
					// gain is the current owner's load before the move, minus the new owner's load
					// after it.
					gain := float64(has[node])/max(float64(weights[node]), 0.001) - float64(has[other]+len(all))/float64(weights[other])
					if gain > best && all.canMoveTo(other) {
						from, to = node, other
						at, best = i, gain
					}
				}
			}
		}
		if best == 0 {
			return moves
		}
		for _, v := range byOwner[from][at] {
			moves = append(moves, vipMove{v.VIP, from, to})
			has[from]--
			has[to]++
		}
		byOwner[from] = slices.Delete(byOwner[from], at, at+1)
	}
}

func balanceVIPs(c *cli.Call) error {
	all, weights, err := ownedVIPs(c)
	if err != nil {
		return err
	}
	moves := balanceMoves(all, weights)
	if !c.Flags.Bool("dry-run") {
		for i, m := range moves {
			if _, _, err := moveVIP(c, m.VIP, m.To, cmp.Or(c.Flags.String("reason"), "balance"), false); err != nil {
				return fmt.Errorf("%s of %s moved: %w", wording.Count(i, "VIP"), wording.Count(len(moves), "VIP"), err)
			}
		}
	}
	return c.Show(lists.NonNil(moves), func() string {
		if len(weights) == 0 {
			return noHost + "\n"
		}
		var b strings.Builder
		for _, m := range moves {
			fmt.Fprintf(&b, "%s: %s -> %s\n", m.VIP, m.From, m.To)
		}
		return cmp.Or(b.String(), "each node has its share\n")
	})
}

// standbyTimeout limits how long a node on standby may take to hand over its VIPs.
const standbyTimeout = 10 * time.Second

func takesPart(c *cli.Call, node string) (bool, error) {
	w, err := c.Etcd()
	if err != nil {
		return false, err
	}
	_, weights, err := w.OwnedVIPs(c)
	_, found := weights[node]
	return found, err
}

// drainVIPs puts a node on standby and waits until its VIPs have left, or ends the standby. It
// prints the result.
func drainVIPs(c *cli.Call, node string, on bool) error {
	if _, err := setNode(c, node, func(conf *schema.NodeConfig) { conf.Standby = on }); err != nil {
		return err
	}
	if !on {
		c.Say("node %s: it may own VIPs again", node)
		return nil
	}
	left, err := emptied(c, node)
	if err != nil {
		return err
	}
	now := "other hosts own its VIPs"
	if len(left) > 0 {
		c.Hint("%s", stillOwns(c, node, left))
		now = "it owns no VIPs"
	}
	c.Say("node %s: %s until \"vipctl undrain --node %s\"", node, now, node)
	return nil
}

func stillOwns(c *cli.Call, node string, left []string) string {
	return fmt.Sprintf("%s still owns %s: no other host can take over now", node, few(c.Printer, left, 3))
}

// emptied waits until a node on standby owns no VIPs that another node can take, for at most
// standbyTimeout. It returns the VIPs that the node still owns.
func emptied(c *cli.Call, node string) ([]string, error) {
	w, err := c.Etcd()
	if err != nil {
		return nil, err
	}
	began := c.Now()
	for {
		all, _, err := w.OwnedVIPs(c)
		if err != nil {
			return nil, err
		}
		var left, stay []string
		for _, v := range all {
			switch {
			case !v.Live || v.Owner.Node != node:
			case len(v.Ready) == 0:
				stay = append(stay, v.Addr.String())
			default:
				left = append(left, v.Addr.String())
			}
		}
		if len(left) == 0 || c.Now().Sub(began) > standbyTimeout {
			return append(left, stay...), nil
		}
		if !wake.Sleep(c, 20*time.Millisecond) {
			return nil, c.Err()
		}
	}
}
