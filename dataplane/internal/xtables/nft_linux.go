package xtables

import (
	"context"
	"errors"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// inNFT has do look at nf_tables, in the network namespace of the calling thread: programs of iptables-nft would read all rules
// for what it asks.
func inNFT(do func(c *nft.Conn) error) error {
	c, err := nft.Open()
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close())
}

// tableOf is what a table of iptables is to nf_tables.
func tableOf(family inet.Family, table string) nft.Table {
	if family == inet.IPv6 {
		return nft.Table{Family: nft.IPv6, Name: table}
	}
	return nft.Table{Family: nft.IPv4, Name: table}
}

// rulesNFT calls begin, rule and end for each of the chains that is there, see nft.Conn.ChainRules. It asks for chain after chain:
// the kernel begins at the table's first rule again for each 32 KiB that it lists, which makes one listing of 114,000 rules take
// twice as long.
func rulesNFT(ctx context.Context, family inet.Family, table string, chains []string, begin func(chain string), rule func(chain string, attrs []byte), end func(chain string)) error {
	return inNFT(func(c *nft.Conn) error {
		for _, chain := range chains {
			if err := ctx.Err(); err != nil {
				return err
			}
			there, err := c.ChainRules(tableOf(family, table), chain, func() { begin(chain) }, func(attrs []byte) { rule(chain, attrs) })
			if err != nil {
				return err
			}
			if there {
				end(chain)
			}
		}
		return nil
	})
}
