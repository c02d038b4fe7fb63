package host

import "net/netip"

// InLedger returns the addresses that the ledger in runDir names as added by vipd, with their devices. They need not be
// there any more. Without a ledger there are none; one that can't be read, as without root, is an error.
func InLedger(runDir string) (map[netip.Addr]string, error) {
	l, err := readLedger(runDir)
	if err != nil {
		return nil, err
	}
	return l.Addresses, nil
}
