package main

import (
	"slices"
	"strings"
)

// piece is a part of a package's tests that runs in its own process, and so in its own network
// namespaces.
type piece struct {
	Path string
	// Run and Skip are patterns for go test's -run and -skip.
	Run, Skip string
}

// long returns the longest pieces, in their starting order. They would last a quarter of an hour in
// sequence, so they run in parallel.
func long() []piece {
	const ipvs, suite = "vipd/dataplane/ipvs", "^TestIPVSConformance$"
	return []piece{
		{Path: ipvs, Run: suite + "/^routed$/^(sctp|many|spread|shares|hashes|max-connections|affinity-ends)$"},
		{Path: ipvs, Run: suite + "/^routed$/^(undisturbed|udp-follows|streams|connections|held-vip|idempotent|order|close)$"},
		{Path: ipvs, Run: suite + "/^routed$"},
		{Path: ipvs, Run: suite + "/^damage$"},
		{Path: ipvs, Run: suite + "/^(foreign|foreign-servers|drains|kills)$"},
		{Path: ipvs, Run: "^TestIPVSFaultsAreNoticed$"},
		{Path: "vipd/cmd/vipd", Run: "^TestIPVSDetection$"},
		{Path: ipvs, Run: suite + "/^(layouts|snat|policy-drop)$"},
		{Path: ipvs, Run: suite},
		{Path: "vipd/cmd/vipd", Run: "^TestIPVSSwitch$"},
	}
}

// cut splits packages into their long pieces and the remaining tests; run is the requested pattern.
func cut(packages []string, run string, long []piece) []piece {
	var pieces []piece
	done := map[string][]string{} // the patterns of earlier pieces, by package
	add := func(p piece) {
		p.Skip = strings.Join(done[p.Path], "|")
		done[p.Path] = append(done[p.Path], p.Run)
		pieces = append(pieces, p)
	}
	for _, p := range long {
		if run == ipvsTests && slices.Contains(packages, p.Path) {
			add(p)
		}
	}
	for _, path := range packages {
		add(piece{Path: path, Run: run})
	}
	return pieces
}
