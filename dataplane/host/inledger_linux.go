package host

import "net/netip"

// InLedger returns the addresses that vipd added according to the ledger in runDir, with their
// devices. Some may since have been removed from the host. A missing ledger counts as empty. It
// returns an error if the ledger can't be read, for example without root.
func InLedger(runDir string) (map[netip.Addr]string, error) {
	l, err := readLedger(runDir)
	if err != nil {
		return nil, err
	}
	return l.Addresses, nil
}
