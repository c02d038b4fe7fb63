package xtables

import (
	"errors"

	"vipd/dataplane/internal/nft"
)

// Stamp identifies a table's state, and is cheap to read. Values can be compared with ==.
type Stamp struct {
	// Generation is the number of nft's last transaction in this network namespace, in any table
	// and by any program. It is 0 in the legacy variant.
	Generation uint32
	// Entries is the number of entries in a legacy table, and 0 in the nft variant. Each rule is an
	// entry, and each user-defined chain has two additional entries. If the table has fewer entries
	// than vipd's rules alone need, one of vipd's objects is missing.
	Entries int
	// Bytes is the total size of the entries.
	Bytes int
	// layout holds the offsets at which the kernel's chains start and end in a legacy table.
	layout [2 * hooks]uint32
}

// Stamp returns the table's stamp in about 20 us. If the stamp is unchanged, the rules are
// unchanged. In the nft variant, this is exact, but changes to other tables also change the stamp.
// In the legacy variant, the stamp misses a change that affects neither the number and size of
// entries nor the offsets of built-in chains, such as replacing a rule with a rule of the same
// form. If Stamp returns an error, it returns the zero Stamp.
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
		err = errors.New("reading the generation of nf_tables: the kernel did not report it")
	}
	return s, err
}
