package xtables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Count is what one rule has matched since it was written.
type Count struct {
	// Packets is how many; in the nat table only the first of each connection is seen.
	Packets uint64
	// Bytes is their size.
	Bytes uint64
}

// manyChains is from where on nft is asked for a whole table at once rather than for each chain.
const manyChains = 1000

// Counts returns the counters of each rule of the named chains, in the order of the rules. Chains that are absent are
// absent in the result. nft is asked for those chains alone while they are few; legacy for its whole table always.
func (t *Tool) Counts(ctx context.Context, table string, chains []string) (map[string][]Count, error) {
	if t.backend == NFT && len(chains) <= manyChains {
		return t.counts(ctx, table, func() (map[string][]Count, error) { return fewCountsNFT(t.family, table, chains) })
	}
	named := make(map[string]bool, len(chains))
	for _, c := range chains {
		named[c] = true
	}
	return t.allCounts(ctx, table, func(name []byte) bool { return named[string(name)] })
}

// FullCounts is Counts of all chains whose names begin with prefix.
func (t *Tool) FullCounts(ctx context.Context, table, prefix string) (map[string][]Count, error) {
	return t.allCounts(ctx, table, func(name []byte) bool { return strings.HasPrefix(string(name), prefix) })
}

func (t *Tool) allCounts(ctx context.Context, table string, wanted func(name []byte) bool) (map[string][]Count, error) {
	return t.counts(ctx, table, func() (map[string][]Count, error) {
		if t.backend == NFT {
			return allCountsNFT(t.family, table, wanted)
		}
		return countsLegacy(t.family, table, wanted)
	})
}

// counts reads until nothing changes meanwhile.
func (t *Tool) counts(ctx context.Context, table string, read func() (map[string][]Count, error)) (map[string][]Count, error) {
	var counts map[string][]Count
	err := steady(func() (err error) {
		if err = ctx.Err(); err == nil {
			counts, err = read()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the counters of %s: %w", table, err)
	}
	return counts, nil
}

func countsLegacy(family Family, table string, wanted func(name []byte) bool) (map[string][]Count, error) {
	counts := map[string][]Count{}
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

func allCountsNFT(family Family, table string, wanted func(name []byte) bool) (map[string][]Count, error) {
	counts := map[string][]Count{}
	err := nftChains(family, table, func(name []byte, _ int) { // those without rules too
		if wanted(name) {
			counts[string(name)] = nil
		}
	})
	if err != nil {
		return nil, err
	}
	conn, err := openNFT()
	if err != nil {
		return nil, err
	}
	defer conn.close()
	name := ""
	var list []Count
	r := request{command: unix.NFT_MSG_GETRULE, dump: true, family: family, attrs: text(unix.NFTA_RULE_TABLE, table)}
	err = conn.ask(r, func(attrs []byte) {
		chain, count := ruleCount(attrs)
		if string(chain) != name { // the kernel lists them chain by chain
			if list != nil {
				counts[name] = list
			}
			name, list = string(chain), nil
		}
		if _, ok := counts[name]; ok {
			list = append(list, count)
		}
	})
	if list != nil {
		counts[name] = list
	}
	return counts, err
}

func fewCountsNFT(family Family, table string, chains []string) (map[string][]Count, error) {
	conn, err := openNFT()
	if err != nil {
		return nil, err
	}
	defer conn.close()
	counts := make(map[string][]Count, len(chains))
	for _, chain := range chains {
		var list []Count
		attrs := append(text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, chain)...)
		err := conn.ask(request{command: unix.NFT_MSG_GETRULE, dump: true, family: family, attrs: attrs}, func(attrs []byte) {
			_, count := ruleCount(attrs)
			list = append(list, count)
		})
		if err == nil && list == nil { // a chain that is absent has no rules either
			attrs := append(text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, chain)...)
			err = conn.ask(request{command: unix.NFT_MSG_GETCHAIN, family: family, attrs: attrs}, func([]byte) {})
		}
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			return nil, err
		}
		counts[chain] = list
	}
	return counts, nil
}

// ruleCount returns a rule's chain, valid as long as attrs, and what its first counter says.
func ruleCount(attrs []byte) (chain []byte, count Count) {
	for kind, value := range attributes(attrs) {
		switch kind {
		case unix.NFTA_RULE_CHAIN:
			chain = cString(value)
		case unix.NFTA_RULE_EXPRESSIONS:
			for _, expr := range attributes(value) {
				if c, ok := counterOf(expr); ok {
					count = c
					break
				}
			}
		}
	}
	return chain, count
}

// counterOf reads an expression, if that is a counter.
func counterOf(expr []byte) (c Count, ok bool) {
	for kind, value := range attributes(expr) {
		switch {
		case kind == unix.NFTA_EXPR_NAME:
			if ok = string(cString(value)) == "counter"; !ok {
				return c, false
			}
		case kind == unix.NFTA_EXPR_DATA && ok:
			for kind, value := range attributes(value) {
				switch {
				case kind == unix.NFTA_COUNTER_PACKETS && len(value) == 8:
					c.Packets = binary.BigEndian.Uint64(value)
				case kind == unix.NFTA_COUNTER_BYTES && len(value) == 8:
					c.Bytes = binary.BigEndian.Uint64(value)
				}
			}
		}
	}
	return c, ok
}
