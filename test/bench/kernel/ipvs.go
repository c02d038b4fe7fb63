package main

import "fmt"

// ipvsSizes configures the loads for ipvs mode's table.
type ipvsSizes struct {
	paths     [2]int // numbers of services whose first packets are compared
	changes   []int  // numbers of loaded services when one is changed, ascending
	usual     int    // usual number of services
	tool      []int  // number of services that ipvsadm loads
	list      int    // number of services in a list like kube-proxy's
	tree      int    // number of services in iptables mode
	endpoints int    // number of endpoints per service
}

// fullIPVSSizes returns the sizes for published figures. If patient is true, the lists and ipvsadm
// also have 10,000 services, which takes most of an hour in an emulated kernel.
func fullIPVSSizes(patient bool) ipvsSizes {
	s := ipvsSizes{
		paths: [2]int{10, 10_000}, changes: []int{100, 1_000, 10_000}, usual: 10_000, tool: []int{2_000}, list: 1_000, tree: 10_000,
		endpoints: 10,
	}
	if patient {
		s.tool, s.list = append(s.tool, 10_000), 10_000
	}
	return s
}

func quickIPVSSizes() ipvsSizes {
	return ipvsSizes{paths: [2]int{5, 60}, changes: []int{10, 60}, usual: 60, tool: []int{30}, list: 30, tree: 30, endpoints: 3}
}

// ipvsBackend is the variant of iptables that ipvs mode's guard and the comparisons use. It is
// Debian's default, and the table's only column.
const ipvsBackend = nft

// atMost returns a row's limits in ipvs mode's table. Only the second limit counts, because
// the only column is ipvsBackend.
func atMost(limit float64) [2]float64 { return [2]float64{0, limit} }

// ipvsPlan returns the rows for ipvs mode.
func ipvsPlan(s ipvsSizes) []row {
	of := func(l layout, n int) spec { return specOf(l, n, s.endpoints) }
	rows := []row{
		{name: oneRule, box: specOf(floorLayout, 1, 10), what: anyVIP},
		{name: fmt.Sprintf("list of %s, mean", group(s.list)), box: of(listLayout, s.list), what: anyVIP, against: oneRule},
		{name: fmt.Sprintf("iptables mode, %s", group(s.tree)), box: of(completeLayout, s.tree), what: anyVIP, against: oneRule},
		{name: fmt.Sprintf("ipvs mode, %s", group(s.paths[0])), box: of(ipvsLayout, s.paths[0]), what: anyVIP, against: oneRule},
	}
	few := rows[len(rows)-1].name
	rows = append(rows, row{name: fmt.Sprintf("ipvs mode, %s", group(s.paths[1])), box: of(ipvsLayout, s.paths[1]), what: anyVIP, against: few, limits: atMost(1.2)})
	rows = append(rows, throughRows(true)...)
	for _, n := range s.tool {
		tool := fmt.Sprintf("ipvsadm --restore of %s", group(n))
		rows = append(rows,
			row{name: tool, box: of(ipvsadmLayout, n), what: loading},
			row{name: fmt.Sprintf("load of %s", group(n)), box: of(ipvsLayout, n), what: loading, against: tool, limits: atMost(0.7)})
	}
	usual, n := of(ipvsLayout, s.usual), group(s.usual)
	if s.usual != s.tool[len(s.tool)-1] {
		rows = append(rows, row{name: "load of " + n, box: usual, what: loading})
	}
	idleTree := fmt.Sprintf("CPU with nothing to do, iptables mode, %s", group(s.tree))
	rows = append(rows,
		row{name: "memory at most, " + n, box: usual, what: memory},
		row{name: idleTree, box: of(completeLayout, s.tree), what: idle},
		row{name: "CPU with nothing to do, " + n, box: usual, what: idle, against: idleTree, limits: atMost(1)})
	first := ""
	for i, n := range s.changes {
		r := row{name: fmt.Sprintf("one endpoint changed of %s", group(n)), box: of(ipvsLayout, n), what: endpointChanged, against: first}
		if i == len(s.changes)-1 {
			r.limits = atMost(1.5)
		}
		if rows = append(rows, r); i == 0 {
			first = r.name
		}
	}
	return rows
}
