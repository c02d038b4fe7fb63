package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
)

// VIPs are random in 10.96.0.0/12, endpoints are numbered in 10.128.0.0/9, and clients are in
// 172.16.0.0/12.
const (
	vipBase, vipBits           = 0x0a600000, 20
	endpointBase, endpointBits = 0x0a800000, 23
	clientBase, clientBits     = 0xac100000, 20
	servicePort, targetPort    = 80, 8080
)

// changedEndpoints is the number of the first endpoint that changes add.
const changedEndpoints = 1 << 22

// vips returns the VIPs of n services. Every process gets the same VIPs, and a longer list starts
// with vips(n).
func vips(n int) []netip.Addr {
	all := rand.New(rand.NewPCG(10_96, 12)).Perm(1 << vipBits)
	out := make([]netip.Addr, n)
	for i := range out {
		out[i] = ipv4(vipBase + uint32(all[i]))
	}
	return out
}

// endpoint returns the address of the i-th endpoint.
func endpoint(i int) netip.Addr { return ipv4(endpointBase + uint32(i)&(1<<endpointBits-1)) }

func ipv4(n uint32) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a)
}

func network(base uint32, bits int) netip.Prefix { return netip.PrefixFrom(ipv4(base), 32-bits) }

// serviceName names the i-th service.
func serviceName(i int) string { return fmt.Sprintf("s%05d", i) }
