// Package bgp runs the recipes of examples/bgp with the real BIRD and FRR, a vipd, and a router in a namespace of its own.
package bgp
