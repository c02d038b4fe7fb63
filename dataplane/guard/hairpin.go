package guard

import (
	"fmt"
	"strings"
	"vipd/dataplane/internal/inet"
)

// The instructions of classic BPF in use (linux/filter.h, linux/bpf_common.h).
const (
	bpfLoadWord = 0x20 // BPF_LD | BPF_W | BPF_ABS: A = the word at k
	bpfTAX      = 0x07 // BPF_MISC | BPF_TAX: X = A
	bpfJumpEqX  = 0x1d // BPF_JMP | BPF_JEQ | BPF_X: by jt where A == X, else by jf
	bpfReturn   = 0x06 // BPF_RET | BPF_K
)

// hairpinProgram is the program that is true of packets whose source is their destination, as xt_bpf takes it: its
// length and instructions in decimals. Offsets count from the header of the family.
func hairpinProgram(family inet.Family) string {
	source, destination, words := 12, 16, 1
	if family == inet.IPv6 {
		source, destination, words = 8, 24, 4
	}
	var code []string
	add := func(op, jt, jf, k int) { code = append(code, fmt.Sprintf("%d %d %d %d", op, jt, jf, k)) }
	for i := range words {
		add(bpfLoadWord, 0, 0, source+4*i)
		add(bpfTAX, 0, 0, 0)
		add(bpfLoadWord, 0, 0, destination+4*i)
		add(bpfJumpEqX, 0, 4*(words-1-i)+1, 0) // to the last instruction, beyond the words that follow and "true"
	}
	add(bpfReturn, 0, 0, 1)
	add(bpfReturn, 0, 0, 0)
	return fmt.Sprintf("%d,%s", len(code), strings.Join(code, ","))
}
