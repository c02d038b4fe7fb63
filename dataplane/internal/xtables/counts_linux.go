package xtables

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/nlsock"
)

// FullCounts returns the number of packets that each rule has matched since the rule was written.
// It maps each chain whose name has the prefix to its rules' counts, in order. Only the first
// packet of each connection traverses the nat table.
func (t *Tool) FullCounts(ctx context.Context, table, prefix string) (counts map[string][]uint64, err error) {
	ours := func(name []byte) bool { return bytes.HasPrefix(name, []byte(prefix)) }
	if t.variant == NFT {
		var chains []string
		if chains, err = t.Chains(ctx, table, func(name string) bool { return strings.HasPrefix(name, prefix) }); err == nil {
			counts, err = countsNFT(ctx, t.family, table, chains)
		}
	} else if err = ctx.Err(); err == nil {
		counts, err = countsLegacy(t.family, table, ours)
	}
	return counts, reading(table, err)
}

func reading(table string, err error) error {
	if err != nil {
		return fmt.Errorf("reading the counters of table %s: %w", table, err)
	}
	return nil
}

func countsLegacy(family inet.Family, table string, wanted func(name []byte) bool) (map[string][]uint64, error) {
	counts := map[string][]uint64{}
	err := readLegacy(family, table, func(b *blob) error {
		clear(counts)
		name, take := "", false
		return b.walk(func(raw []byte, _ int) {
			if take = wanted(raw); take {
				name = string(raw)
				counts[name] = nil
			}
		}, func(r rule) {
			if take {
				counts[name] = append(counts[name], r.count)
			}
		})
	})
	return counts, err
}

// listedCounts parses the counters in output from "-S chain -v": "-A chain ... -c 12 720 -j ...".
func listedCounts(text string) map[string][]uint64 {
	counts := map[string][]uint64{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) < 2:
		case words[0] == "-N":
			counts[words[1]] = nil
		case words[0] == "-A":
			var packets uint64
			for i := 2; i+2 < len(words); i++ { // use the last match, because a comment may contain the same text
				if words[i] == "-c" {
					packets, _ = strconv.ParseUint(words[i+1], 10, 64)
				}
			}
			counts[words[1]] = append(counts[words[1]], packets)
		}
	}
	return counts
}

func countsNFT(ctx context.Context, family inet.Family, table string, chains []string) (map[string][]uint64, error) {
	counts := make(map[string][]uint64, len(chains))
	err := rulesNFT(ctx, family, table, chains, func(chain string) { delete(counts, chain) }, func(chain string, attrs []byte) {
		counts[chain] = append(counts[chain], countOf(attrs))
	}, func(chain string) {
		if _, some := counts[chain]; !some {
			counts[chain] = nil // a chain without rules
		}
	})
	return counts, err
}

// countOf returns the first counter of a rule, or 0 if the rule has none.
func countOf(attrs []byte) uint64 {
	for a := nlsock.In(attrs); a.Next(); {
		if a.Kind != unix.NFTA_RULE_EXPRESSIONS {
			continue
		}
		for e := nlsock.In(a.Value); e.Next(); {
			if n, ok := nft.Counted(e.Value); ok {
				return n
			}
		}
	}
	return 0
}
