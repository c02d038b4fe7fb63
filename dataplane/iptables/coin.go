package iptables

import (
	"fmt"
	"hash/fnv"

	"golang.org/x/net/bpf"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// coin returns the match of a rule that selects a target. Of the connections that reach the rule,
// the fraction share/rest must match. Both numbers are sums of weights. id identifies the target
// for hashes.
type coin func(id string, share, rest int) string

// byChance is a random coin. The kernel stores probabilities in 31 bits. With fewer decimals, the
// error would be noticeable for a thousand backends.
func byChance(_ string, share, rest int) string {
	return fmt.Sprintf("-m statistic --mode random --probability %.11f ", float64(share)/float64(rest))
}

// inTurn is a coin that matches one connection and then skips rest-1 connections. The rules that
// follow divide the skipped connections in the same way. share is always 1.
func inTurn(_ string, _, rest int) string {
	return fmt.Sprintf("-m statistic --mode nth --every %d --packet 0 ", rest)
}

// bySource returns a coin that always makes the same decision for a client. Every target has its
// own hash, so few of the remaining targets' clients move when targets are added or removed.
func bySource(is4 bool) coin {
	return func(id string, share, rest int) string {
		return "-m bpf --bytecode \"" + xtables.Bytecode(sourceCoin(is4, id, share, rest)) + "\" "
	}
}

// sourceCoin returns the BPF program for a coin of bySource.
func sourceCoin(is4 bool, id string, share, rest int) []bpf.Instruction {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // a hash never fails
	return sourceBelow(is4, h.Sum32(), uint32(float64(share)/float64(rest)*(1<<32)))
}

// sourceBelow returns a program that matches packets whose source address, hashed with seed, is
// below limit. It mixes bits with the finalizer of MurmurHash3 (Austin Appleby, public domain).
func sourceBelow(is4 bool, seed, limit uint32) []bpf.Instruction {
	const mix1, mix2 = 0x85ebca6b, 0xc2b2ae35
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 4}, // the source address of an IPv4 header
		bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: seed},
	}
	if !is4 {
		code = []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegX, Val: seed}}
		for off := uint32(8); off < 24; off += 4 { // the source address of an IPv6 header
			code = append(code,
				bpf.LoadAbsolute{Off: off, Size: 4}, bpf.ALUOpX{Op: bpf.ALUOpXor},
				bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: mix1}, bpf.TAX{})
		}
	}
	fold := func(by uint32) {
		code = append(code, bpf.TAX{}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: by}, bpf.ALUOpX{Op: bpf.ALUOpXor})
	}
	fold(16)
	code = append(code, bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: mix1})
	fold(13)
	code = append(code, bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: mix2})
	fold(16)
	return append(code,
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: limit, SkipTrue: 1},
		bpf.RetConstant{Val: 1},
		bpf.RetConstant{Val: 0},
	)
}

func coinOf(f *balancer.Frontend) coin {
	switch f.Scheduler {
	case balancer.RoundRobin:
		return inTurn
	case balancer.SourceHash, balancer.Maglev:
		return bySource(f.Addr.Is4())
	default:
		return byChance
	}
}
