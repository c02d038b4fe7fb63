package xtables

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/nlsock"
)

// ChainHash identifies a chain's content. Values can be compared with ==, but only within a
// process.
type ChainHash struct {
	// Rules is the number of the chain's rules.
	Rules int
	// Sum is a hash of the rules in the kernel's format, in order and without their counters.
	Sum uint64
}

// seed is the seed for all hashes, which must be comparable within the process.
var seed = maphash.MakeSeed()

// ChainHashes returns the hashes of the named chains that exist. For the kernel's own chains, it
// includes only rules that jump to chains whose names have the prefix. It costs as much as
// FullCounts.
func (t *Tool) ChainHashes(ctx context.Context, table, prefix string, chains []string) (prints map[string]ChainHash, err error) {
	if t.variant == NFT {
		prints, err = hashesNFT(ctx, t.family, table, prefix, chains)
	} else if err = ctx.Err(); err == nil {
		prints, err = hashesLegacy(t.family, table, prefix, chains)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the rules of table %s: %w", table, err)
	}
	return prints, nil
}

// NotWritten returns an error about a chain whose hash differs from the rules that the program
// reported as written.
func NotWritten(table, chain string, got ChainHash) error {
	return fmt.Errorf("chain %s of table %s has %d rules, which differ from vipd's. "+
		"If no other program changes the chain, choose the other [iptables] backend", chain, table, got.Rules)
}

// isHook reports whether a chain is one of the kernel's own chains.
func isHook(chain string) bool {
	for h := range hooks {
		if hookName(h) == chain {
			return true
		}
	}
	return false
}

func hashesNFT(ctx context.Context, family inet.Family, table, prefix string, chains []string) (map[string]ChainHash, error) {
	prints := make(map[string]ChainHash, len(chains))
	var rules int
	var sum maphash.Hash
	err := rulesNFT(ctx, family, table, chains, func(string) { rules = 0; sum.SetSeed(seed) }, func(chain string, attrs []byte) {
		if !isHook(chain) || bytes.Contains(attrs, []byte(prefix)) {
			rules++
			hashRuleNFT(&sum, attrs)
		}
	}, func(chain string) { prints[chain] = ChainHash{rules, sum.Sum64()} })
	return prints, err
}

// hashRuleNFT adds a rule to a hash, without the rule's handle, position and counters.
func hashRuleNFT(sum *maphash.Hash, attrs []byte) {
	for a := nlsock.In(attrs); a.Next(); {
		switch a.Kind {
		case unix.NFTA_RULE_EXPRESSIONS:
			for e := nlsock.In(a.Value); e.Next(); {
				expr := e.Value
				if _, counter := nft.Counted(expr); counter {
					expr = []byte("counter")
				}
				hashPiece(sum, a.Kind, expr)
			}
		case unix.NFTA_RULE_COMPAT, unix.NFTA_RULE_USERDATA:
			hashPiece(sum, a.Kind, a.Value)
		}
	}
}

// hashPiece adds a piece to a hash. Different sequences of pieces always give the hash different
// input.
func hashPiece(sum *maphash.Hash, kind uint16, piece []byte) {
	var head [8]byte
	binary.NativeEndian.PutUint16(head[:], kind)
	binary.NativeEndian.PutUint32(head[4:], uint32(len(piece)))
	_, _ = sum.Write(head[:]) // Write never fails
	_, _ = sum.Write(piece)
}

func hashesLegacy(family inet.Family, table, prefix string, chains []string) (map[string]ChainHash, error) {
	prints := make(map[string]ChainHash, len(chains))
	wanted := make(map[string]bool, len(chains))
	for _, c := range chains {
		wanted[c] = true
	}
	err := readLegacy(family, table, func(b *blob) error {
		clear(prints)
		names := map[int]string{}
		if err := b.walk(func(name []byte, at int) { names[at] = string(name) }, func(rule) {}); err != nil {
			return err
		}
		var p ChainHash
		var sum maphash.Hash
		name := ""
		end := func() {
			if wanted[name] {
				p.Sum = sum.Sum64()
				prints[name] = p
			}
		}
		err := b.walk(func(_ []byte, at int) {
			end()
			name, p = names[at], ChainHash{}
			sum.SetSeed(seed)
		}, func(r rule) {
			target := names[r.jumpTo]
			if wanted[name] && (!isHook(name) || len(target) >= len(prefix) && target[:len(prefix)] == prefix) {
				p.Rules++
				b.hash(&sum, r, target)
			}
		})
		end()
		return err
	})
	return prints, err
}

// hash adds a rule to a hash, without the rule's counters and the offset of the chain to which it
// jumps.
func (b *blob) hash(sum *maphash.Hash, r rule, to string) {
	target, next, _ := b.entry(r.at)
	entry := b.entries[r.at:next]
	hashPiece(sum, 0, entry[:b.layout.targetOffset-4])  // the matches in the entry itself, up to a field that the kernel uses as a cache
	hashPiece(sum, 1, entry[b.layout.size:target-r.at]) // additional matches
	if r.jumpTo >= 0 || r.onward {
		hashPiece(sum, 2, []byte(to))
		return
	}
	hashPiece(sum, 3, b.entries[target:next])
}
