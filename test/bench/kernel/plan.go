package main

import (
	"fmt"
	"regexp"
	"slices"
)

// backend is a variant of iptables.
type backend string

const (
	legacy backend = "legacy"
	nft    backend = "nft"
)

// backends returns all backends, in the order of the table's columns and of row.limits.
func backends() []backend { return []backend{legacy, nft} }

// layout is a kind of rule set for services.
type layout string

const (
	floorLayout    layout = "floor"    // one DNAT rule, the minimum cost of a service
	listLayout     layout = "list"     // a list like kube-proxy's
	natLayout      layout = "nat"      // iptables mode's own rules, without the guard
	completeLayout layout = "complete" // iptables mode with everything that the daemon keeps on a host

	mapsLayout         layout = "maps"          // nftables mode's own table, without the guard
	mapsCompleteLayout layout = "maps complete" // nftables mode with everything that the daemon keeps on a host
	affinityLayout     layout = "affinity"      // maps complete with affinity
	rangesLayout       layout = "ranges"        // maps complete with three source ranges
	clampLayout        layout = "clamp"         // maps complete with segments limited to the path's MTU
	directLayout       layout = "direct"        // maps complete with forward = "dr"
	fastLayout         layout = "fast"          // maps complete with fast_path

	emptyLayout layout = "empty" // no rules; the host only routes

	ipvsLayout       layout = "ipvs"        // ipvs mode with everything that the daemon keeps on a host
	ipvsDirectLayout layout = "ipvs direct" // ipvs with forward = "dr"
	ipvsadmLayout    layout = "ipvsadm"     // the same virtual servers, loaded by ipvsadm --restore
)

// spec is the content of a box.
type spec struct {
	Layout    layout `json:"layout"`
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`
	// Through is set if packets leave the box. Otherwise the box drops them after NAT, before the
	// kernel remembers their connections.
	Through traffic `json:"through,omitempty"`
}

// specOf returns the content of a box that drops packets.
func specOf(l layout, services, endpoints int) spec {
	return spec{Layout: l, Services: services, Endpoints: endpoints}
}

// traffic is a kind of traffic through a box.
type traffic string

const (
	opening     traffic = "opening"     // every packet is a TCP SYN of a new connection
	established traffic = "established" // datagrams of flows that endpoints have answered
)

// measure is a measured property of a box.
type measure string

const (
	// First packets are sent to random VIPs, to the last loaded VIP, or to addresses that are not
	// VIPs.
	anyVIP  measure = "any VIP"
	lastVIP measure = "last VIP"
	noVIP   measure = "no VIP"
	// These packets are sent to one of the endpoints, or to another host's link address, so the box
	// ignores them.
	anyEndpoint measure = "any endpoint"
	nowhere     measure = "nowhere"
	// These measure the control plane: a load into empty tables, and changes to loaded services.
	loading         measure = "load"
	endpointChanged measure = "one endpoint changed"
	serviceAdded    measure = "one service added"
	serviceRemoved  measure = "one service removed"
	// These measure the result of a load.
	ruleCount measure = "rules"
	memory    measure = "memory at most"
	// CPU time is measured while the box is idle, and while another process adds a rule every 100
	// ms.
	idle      measure = "idle"
	disturbed measure = "others change rules"
)

// isPath reports whether m is the cost of a packet.
func (m measure) isPath() bool {
	return m == anyVIP || m == lastVIP || m == noVIP || m == anyEndpoint || m == nowhere
}

// isCount reports whether m's values are integers.
func (m measure) isCount() bool { return m == ruleCount }

// unit returns the unit of m's values, and their number of decimals.
func (m measure) unit() (name string, decimals int) {
	switch m {
	case anyVIP, lastVIP, noVIP, anyEndpoint, nowhere:
		return "us", 2
	case loading:
		return "s", 2
	case endpointChanged, serviceAdded, serviceRemoved:
		return "ms", 0
	case memory:
		return "MiB", 0
	case idle, disturbed:
		return "% of a core", 2
	}
	return "", 0
}

// row is one line of the table.
type row struct {
	name string
	box  spec
	what measure
	// against is the name of the row to compare with, or "".
	against string
	// above is the name of a row whose value is subtracted from both sides of the ratio, or "".
	above string
	// limits has the maximum for each backend. It applies to the ratio or, without a ratio, to the
	// value. 0 means no limit.
	limits [2]float64
	// bar is the row's label in the plot, or "". BACKEND in it stands for the backend's name.
	bar string
}

// sizes configures the loads.
type sizes struct {
	list      []int // numbers of services in lists, ascending
	services  []int // numbers of services in iptables mode: small, usual and large
	one       []int // numbers of endpoints of a single service, ascending
	endpoints int   // number of endpoints per service in all other rows
}

func fullSizes() sizes {
	return sizes{list: []int{1_000, 10_000}, services: []int{1_000, 10_000, 30_000}, one: []int{10, 100, 1_000}, endpoints: 10}
}

func quickSizes() sizes {
	return sizes{list: []int{50, 500}, services: []int{50, 200, 600}, one: []int{10, 40, 160}, endpoints: 5}
}

// oneRule is the name of the row with which first packets are compared.
const oneRule = "one DNAT rule over ten endpoints"

// plan returns the rows of the complete table.
func plan(s sizes) []row {
	floor := specOf(floorLayout, 1, 10)
	rows := []row{{name: oneRule, box: floor, what: anyVIP, bar: oneRule}}
	for _, n := range s.list {
		box := specOf(listLayout, n, s.endpoints)
		rows = append(rows,
			row{name: fmt.Sprintf("list of %s, mean", group(n)), box: box, what: anyVIP, against: oneRule, bar: meanBar(s, n)},
			row{name: fmt.Sprintf("list of %s, worst", group(n)), box: box, what: lastVIP, against: oneRule})
	}
	rows = append(rows, ownPaths(s, natLayout, "nat rules alone", [2]float64{1.4, 1.7})...)
	rows = append(rows, ownPaths(s, completeLayout, "complete", [2]float64{1.6, 1.9})...)
	rows = append(rows, ownPaths(s, mapsLayout, "nftables mode alone", [2]float64{0, 1.25})...)
	plain := ownPaths(s, mapsCompleteLayout, "nftables mode, complete", [2]float64{0, 1.4})
	rows = append(rows, plain...)
	rows = append(rows, row{
		name: "nftables mode, complete, one service", box: specOf(mapsCompleteLayout, 1, floor.Endpoints),
		what: anyVIP, against: oneRule, limits: [2]float64{0, 1.3},
	})
	for _, l := range []layout{affinityLayout, rangesLayout, clampLayout} {
		rows = append(rows, row{
			name: fmt.Sprintf("nftables mode, %s, %s", l, group(s.services[1])), box: specOf(l, s.services[1], s.endpoints),
			what: anyVIP, against: plain[1].name, limits: [2]float64{0, 1.5},
		})
	}
	first := ""
	for i, n := range s.one {
		r := row{name: fmt.Sprintf("one service, %s endpoints", group(n)), box: specOf(completeLayout, 1, n), what: anyVIP, against: first}
		if i == len(s.one)-1 {
			r.limits = [2]float64{1.5, 1.5}
		}
		if rows = append(rows, r); i == 0 {
			first = r.name
		}
	}
	usual := specOf(completeLayout, s.services[1], s.endpoints)
	longest := s.list[len(s.list)-1]
	const stranger = "for no VIP: one NAT rule"
	rows = append(rows,
		row{name: stranger, box: floor, what: noVIP},
		row{name: fmt.Sprintf("for no VIP: list of %s", group(longest)), box: specOf(listLayout, longest, s.endpoints), what: noVIP, against: stranger},
		row{name: fmt.Sprintf("for no VIP: complete, %s", group(usual.Services)), box: usual, what: noVIP, against: stranger, limits: [2]float64{1.05, 1.05}})
	rows = append(rows, row{
		name: fmt.Sprintf("for no VIP: nftables mode, complete, %s", group(usual.Services)), box: specOf(mapsCompleteLayout, usual.Services, usual.Endpoints),
		what: noVIP, against: stranger, limits: [2]float64{0, 1.05},
	})
	rows = append(rows, throughRows(false)...)
	return append(append(rows, control(s)...), mapsControl(s)...)
}

// throughRows returns the rows for complete paths through a host: from the arrival of a frame until
// the frame has left for an endpoint. withIPVS adds the paths that need modules of the kernel.
func throughRows(withIPVS bool) []row {
	const ignored = "an ignored frame"
	rows := []row{{name: ignored, box: spec{emptyLayout, 1, 10, opening}, what: nowhere}}
	for _, t := range []traffic{opening, established} {
		add := func(name string, l layout, against string, limit float64) string {
			r := row{name: fmt.Sprintf("%s: %s", t, name), box: spec{l, 1, 10, t}, what: anyVIP, against: against, limits: [2]float64{0, limit}}
			if l == emptyLayout {
				r.what = anyEndpoint
			}
			if l == directLayout || l == fastLayout {
				r.above = ignored
			}
			rows = append(rows, r)
			return r.name
		}
		natLimit, drLimit := 1.2, 0.35
		if t == established {
			natLimit, drLimit = 0, 0.8
		}
		add("routed", emptyLayout, "", 0)
		base := add(oneRule, floorLayout, "", 0)
		nat := add("nftables mode", mapsCompleteLayout, base, natLimit)
		add("nftables mode, dr", directLayout, nat, drLimit)
		if !withIPVS {
			continue
		}
		add("ipvs mode", ipvsLayout, base, 0)
		dr := add("ipvs mode, dr", ipvsDirectLayout, base, 0)
		if t == established {
			add("nftables mode, fast_path", fastLayout, dr, 1)
		}
	}
	return rows
}

// mapsControl returns the rows for nftables mode's control plane.
func mapsControl(s sizes) (rows []row) {
	for i, n := range s.services {
		complete, alone := specOf(mapsCompleteLayout, n, s.endpoints), specOf(mapsLayout, n, s.endpoints)
		name := fmt.Sprintf("of %s, nftables mode", group(n))
		limit := func(most float64) (l [2]float64) {
			if i == 1 {
				l[1] = most
			}
			return l
		}
		rows = append(rows,
			row{name: "load " + name, box: complete, what: loading, limits: limit(1.5)},
			row{name: "load " + name + " alone", box: alone, what: loading, limits: limit(0.5)})
		for _, what := range []measure{endpointChanged, serviceAdded, serviceRemoved} {
			rows = append(rows, row{name: fmt.Sprintf("%s %s", what, name), box: complete, what: what, limits: limit(5)})
		}
	}
	usual := specOf(mapsCompleteLayout, s.services[1], s.endpoints)
	name := fmt.Sprintf(", nftables mode, %s", group(usual.Services))
	return append(rows,
		row{name: "memory at most" + name, box: usual, what: memory, limits: [2]float64{0, 200}},
		row{name: "CPU with nothing to do" + name, box: usual, what: idle, limits: [2]float64{0, 0.2}},
		row{name: "CPU while others add rules" + name, box: usual, what: disturbed, limits: [2]float64{0, 1}})
}

// ownPaths returns the rows for one of iptables mode's layouts. The limits apply to the usual
// number of services.
func ownPaths(s sizes, l layout, name string, limits [2]float64) []row {
	var rows []row
	for i, n := range s.services {
		r := row{name: fmt.Sprintf("%s, %s", name, group(n)), box: specOf(l, n, s.endpoints), what: anyVIP, against: oneRule}
		switch i {
		case 1:
			r.limits, r.bar = limits, ownBar(l, n)
		case 2:
			r.against, r.limits = rows[1].name, [2]float64{1.3, 1.3}
		}
		rows = append(rows, r)
	}
	return rows
}

// control returns the rows for the control plane.
func control(s sizes) (rows []row) {
	for i, n := range s.services {
		box := specOf(completeLayout, n, s.endpoints)
		load := row{name: fmt.Sprintf("load of %s", group(n)), box: box, what: loading}
		if i == 1 {
			load.limits = [2]float64{1.5, 4}
		}
		rows = append(rows, load,
			row{name: load.name + ", nat rules alone", box: specOf(natLayout, n, s.endpoints), what: loading})
	}
	for _, n := range s.list {
		rows = append(rows, row{name: fmt.Sprintf("load of %s, list", group(n)), box: specOf(listLayout, n, s.endpoints), what: loading})
	}
	usual, n := specOf(completeLayout, s.services[1], s.endpoints), s.list[len(s.list)-1]
	rows = append(rows, // measured before any change
		row{name: fmt.Sprintf("rules for %s", group(usual.Services)), box: usual, what: ruleCount, limits: [2]float64{150_000, 150_000}},
		row{name: fmt.Sprintf("rules for %s, list", group(n)), box: specOf(listLayout, n, s.endpoints), what: ruleCount})
	for i, n := range s.services[:2] {
		for _, what := range []measure{endpointChanged, serviceAdded, serviceRemoved} {
			r := row{name: fmt.Sprintf("%s of %s", what, group(n)), box: specOf(completeLayout, n, s.endpoints), what: what}
			if i == 1 {
				r.limits = [2]float64{500, 80}
			}
			rows = append(rows, r)
			if slices.Contains(s.list, n) {
				r := row{name: r.name + ", list", box: specOf(listLayout, n, s.endpoints), what: what}
				rows = append(rows, r)
			}
		}
	}
	return append(rows,
		row{name: fmt.Sprintf("memory at most, %s", group(usual.Services)), box: usual, what: memory},
		row{name: fmt.Sprintf("CPU with nothing to do, %s", group(usual.Services)), box: usual, what: idle, limits: [2]float64{1, 1}},
		row{name: fmt.Sprintf("CPU while others add rules, %s", group(usual.Services)), box: usual, what: disturbed, limits: [2]float64{1, 1}})
}

// chosen returns the rows whose names match, and the rows with which they are compared.
func chosen(rows []row, only *regexp.Regexp) []row {
	want := map[string]bool{}
	for i := len(rows) - 1; i >= 0; i-- { // a row is compared with an earlier one
		if r := rows[i]; only.MatchString(r.name) || want[r.name] {
			want[r.name] = true
			want[r.against], want[r.above] = true, true
		}
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !want[r.name] })
}

// group formats a number with commas between thousands.
func group(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", group(n/1000), n%1000)
}
