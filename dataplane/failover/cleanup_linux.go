package failover

import "errors"

// Cleanup removes the gate and VIPs that a killed owner left behind. It returns a description of
// each step. If dry is true, it changes nothing. No owner may be running.
func Cleanup(dry bool) (done []string, err error) {
	g, err := NewGate(GateOptions{})
	if err != nil {
		return nil, nil //nolint:nilerr // without nf_tables no gate exists
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if exists, err := g.conn.HasTable(g.table); err != nil || !exists {
		return nil, nil //nolint:nilerr // a kernel without nf_tables has none
	}
	vips, err := g.listed()
	if err != nil {
		return nil, err
	}
	done = []string{"delete the nftables table " + g.table.String()}
	if dry {
		return done, nil
	}
	x, err := NewAddresses()
	if err != nil {
		return nil, err
	}
	_, err = x.Strip(vips)
	return done, errors.Join(err, x.Close(), g.Remove())
}
