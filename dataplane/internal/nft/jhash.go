package nft

import (
	"encoding/binary"
	"math/bits"
)

// Sum returns the number that the kernel computes for a value of j.Of. The value has the format of
// Bytes. It uses Bob Jenkins' lookup3 (include/linux/jhash.h) and reciprocal_scale
// (include/linux/math.h).
func (j Jhash) Sum(value []byte) uint32 {
	word := binary.NativeEndian.Uint32
	start := 0xdeadbeef + uint32(len(value)) + j.Seed
	a := start
	b := start
	c := start
	for len(value) > 12 {
		a = a + word(value)
		b = b + word(value[4:])
		c = c + word(value[8:])
		a, b, c = mix(a, b, c)
		value = value[12:]
	}
	if len(value) > 0 {
		var last [12]byte // the remaining bytes are read as little-endian words on every machine
		copy(last[:], value)
		a += binary.LittleEndian.Uint32(last[:])
		b += binary.LittleEndian.Uint32(last[4:])
		c += binary.LittleEndian.Uint32(last[8:])
		c = final(a, b, c)
	}
	return uint32(uint64(c)*uint64(j.Mod)>>32) + j.Offset
}

func mix(a, b, c uint32) (x, y, z uint32) {
	for _, turn := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
		a = (a - c) ^ bits.RotateLeft32(c, turn[0])
		c += b
		b = (b - a) ^ bits.RotateLeft32(a, turn[1])
		a += c
		c = (c - b) ^ bits.RotateLeft32(b, turn[2])
		b += a
	}
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
