package xtables

import (
	"context"
	"fmt"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// Chains returns the table's chains whose names are ours, in no order. It does not read rules in nft, so that it works
// where Saved finds the table to be incompatible.
func (t *Tool) Chains(ctx context.Context, table string, ours func(chain string) bool) ([]string, error) {
	err := ctx.Err()
	var chains []string
	if err == nil && t.variant == NFT {
		var all []nft.Found
		all, err = chainsNFT(t.family, table)
		for _, c := range all {
			if ours(c.Name) {
				chains = append(chains, c.Name)
			}
		}
	} else if err == nil {
		chains, err = chainsLegacy(t.family, table, ours)
	}
	if err != nil {
		return nil, fmt.Errorf("listing the chains of %s: %w", table, err)
	}
	return chains, nil
}

// ChainExists reports whether table has the chain. It starts no program.
func (t *Tool) ChainExists(ctx context.Context, table, chain string) (exists bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if t.variant == NFT {
		err = inNFT(func(c *nft.Conn) (err error) {
			exists, err = c.HasChain(tableOf(t.family, table), chain)
			return err
		})
	} else {
		var chains []string
		chains, err = chainsLegacy(t.family, table, func(name string) bool { return name == chain })
		exists = len(chains) > 0
	}
	if err != nil {
		return false, fmt.Errorf("looking for chain %s of %s: %w", chain, table, err)
	}
	return exists, nil
}

func chainsLegacy(family inet.Family, table string, ours func(chain string) bool) ([]string, error) {
	var chains []string
	err := readLegacy(family, table, func(b *blob) error {
		chains = nil
		return b.walk(func(raw []byte, _ int) {
			if name := string(raw); ours(name) {
				chains = append(chains, name)
			}
		}, func(rule) {})
	})
	return chains, err
}
