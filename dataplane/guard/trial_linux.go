package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// trialSuffix is appended to the name of a table that a trial creates and deletes.
const trialSuffix = "-trial"

// try creates a table with all chains, and deletes it. Its error names the feature that the kernel
// lacks. Package failover tests the requirements of hold = "one", and tryLimits tests what limits
// need.
func try(conn *nft.Conn, of inet.Family) error {
	l := newLayout(of)
	l.table.Name += trialSuffix
	var tx nft.Tx
	l.write(&tx, dataplane.Needs{Forward: true, LocalIn: true, TranslatesAll: true, Resets: true}, newMarkBits(0), features{
		special: true, restricted: true, silent: true, rejected: true, always: true, never: true, direct: true, clamps: true, links: true,
		roaming: true, dead: true, quiet: true, ranges: true,
	})
	return (&nft.Maintained{Conn: conn, Table: l.table}).Try(&tx)
}

// Try proves with a trial that a forwarding mode's guard works here. Its error names the feature
// that the kernel refuses. IPv6 is required only if the kernel supports IPv6.
func Try() error {
	for _, of := range inet.Families() {
		if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil && of == inet.IPv6 {
			continue
		}
		conn, err := nft.Open()
		if err == nil {
			err = errors.Join(try(conn, of), conn.Close())
		}
		if err != nil {
			return unusable(of, err)
		}
	}
	return nil
}

// unusable returns an error that contains the family, the reason and advice.
func unusable(of inet.Family, reason error) error {
	need := "they need Linux 5.9 or later"
	if errors.Is(reason, fs.ErrPermission) {
		need = "they need CAP_NET_ADMIN: run as root"
	}
	return fmt.Errorf("nf_tables can't hold vipd's rules for %s here: %w: %s", of, reason, need)
}
