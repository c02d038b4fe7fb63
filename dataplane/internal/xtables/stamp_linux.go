package xtables

import (
	"errors"

	"vipd/dataplane/internal/nft"
)

// Stamp is what a table is known by at a glance. Stamps are compared with ==.
type Stamp struct {
	// Generation is the number of the last transaction of nft in this network namespace, in whatever table and by
	// whatever program; 0 in legacy.
	Generation uint32
	// Entries is the number of entries of legacy's table; 0 in nft. A rule is one, a chain that is not the kernel's two
	// more. Fewer entries than are ours alone prove that something of ours is gone.
	Entries int
	// Bytes is the size of those entries.
	Bytes int
	// layout is where the kernel's chains begin and end in legacy's table.
	layout [2 * hooks]uint32
}

// Stamp looks at the table, some 20 us. While it stays the same no rule has changed; in nft that is exact, and
// changes elsewhere in the namespace change it too. In legacy it does not show a change that keeps number, size, and the
// bounds of the kernel's chains: one rule for another of the same make. The zero Stamp comes with an error.
func (t *Tool) Stamp(table string) (Stamp, error) {
	if t.variant == Legacy {
		return legacyStamp(t.family, table)
	}
	var s Stamp
	err := inNFT(func(c *nft.Conn) (err error) {
		s.Generation, err = c.Generation()
		return err
	})
	if err == nil && s.Generation == 0 {
		err = errors.New("asking for the generation of nf_tables: the kernel did not say")
	}
	return s, err
}
