package host

import "net/netip"

// InLedger returns the addresses that vipd added according to the ledger in runDir, with their
// devices. They may have been removed since. A missing ledger is empty; a ledger that can't be
// read, for example without root, is an error.
func InLedger(runDir string) (map[netip.Addr]string, error) {
	l, err := readLedger(runDir)
	if err != nil {
		return nil, err
	}
	return l.Addresses, nil
}
