package xtables

import (
	"fmt"
	"strings"

	"golang.org/x/net/bpf"
)

// Bytecode formats a program for the match bpf: its length and its instructions in decimal. Offsets
// are relative to the IPv4 or IPv6 header.
func Bytecode(program []bpf.Instruction) string {
	raw, err := bpf.Assemble(program)
	if err != nil {
		panic("xtables: " + err.Error()) // vipd's programs are constant, except for numbers
	}
	var b strings.Builder
	fmt.Fprint(&b, len(raw))
	for _, i := range raw {
		fmt.Fprintf(&b, ",%d %d %d %d", i.Op, i.Jt, i.Jf, i.K)
	}
	return b.String()
}
