// Package bgp runs the recipes in examples/bgp with real BIRD and FRR, a vipd, and a router in its
// own namespace.
package bgp
