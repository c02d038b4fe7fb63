package guard

import (
	"golang.org/x/net/bpf"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/xtables"
)

// hairpinProgram is true of packets whose source is their destination.
func hairpinProgram(family inet.Family) string {
	source, destination, words := uint32(12), uint32(16), 1
	if family == inet.IPv6 {
		source, destination, words = 8, 24, 4
	}
	var code []bpf.Instruction
	for i := range words {
		code = append(code,
			bpf.LoadAbsolute{Off: source + uint32(4*i), Size: 4}, bpf.TAX{},
			bpf.LoadAbsolute{Off: destination + uint32(4*i), Size: 4},
			bpf.JumpIfX{Cond: bpf.JumpEqual, SkipFalse: uint8(4*(words-1-i) + 1)}, // to the last, beyond the words that follow and "true"
		)
	}
	return xtables.Bytecode(append(code, bpf.RetConstant{Val: 1}, bpf.RetConstant{Val: 0}))
}
