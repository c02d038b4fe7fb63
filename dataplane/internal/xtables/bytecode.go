package xtables

import (
	"fmt"
	"strings"

	"golang.org/x/net/bpf"
)

// Bytecode writes a program as the match bpf reads it: its length and instructions in decimals. Offsets count from the header of
// the family.
func Bytecode(program []bpf.Instruction) string {
	raw, err := bpf.Assemble(program)
	if err != nil {
		panic("xtables: " + err.Error()) // the programs are constant but for numbers
	}
	var b strings.Builder
	fmt.Fprint(&b, len(raw))
	for _, i := range raw {
		fmt.Fprintf(&b, ",%d %d %d %d", i.Op, i.Jt, i.Jf, i.K)
	}
	return b.String()
}
