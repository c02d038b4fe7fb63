package host

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// HoldDirect holds VIPs for direct routing without a daemon. The VIPs of earlier calls remain. It
// returns a description of each step, and a problem for each VIP that it can't hold.
func HoldDirect(o Options, vips []netip.Addr) (done []string, problems []balancer.Problem, err error) {
	h, err := newDirect(o)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = h.Close() }() // an error of Close is harmless
	for _, a := range vips {
		h.want.Direct = h.want.Direct.Set(a, "")
	}
	before := maps.Clone(h.ledger.Sysctls)
	added, err := h.holdDirect()
	for _, name := range slices.Sorted(maps.Keys(h.ledger.Sysctls)) {
		if r := h.ledger.Sysctls[name]; before[name] != r {
			done = append(done, fmt.Sprintf("set sysctl %s from %s to %s", name, r.Old, r.Set))
		}
	}
	return append(done, added...), slices.Concat(h.directProblems, h.arpProblems), errors.Join(err, h.ledger.save())
}

// ReleaseDirect removes VIPs that HoldDirect added, or all of them if vips is empty. If no VIP
// remains, it restores the sysctls. It returns a description of each step. A dry run changes
// nothing.
func ReleaseDirect(o Options, vips []netip.Addr, dryRun bool) ([]string, error) {
	h, err := newDirect(o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.Close() }() // an error of Close is harmless
	c := cleanup{host: h, dry: dryRun}
	for a := range h.ledger.Direct {
		if len(vips) == 0 || slices.Contains(vips, a) {
			h.want.Direct = h.want.Direct.Delete(a)
		}
	}
	c.direct()
	if h.want.Direct.Len() == 0 {
		c.sysctls()
	}
	if !dryRun {
		c.note(h.ledger.save())
		_ = os.Remove(h.opts.RunDir) // fails if VIPs remain in the ledger
	}
	return c.done, errors.Join(c.errs...)
}

// newDirect returns a Host that holds the VIPs in the ledger of HoldDirect. This ledger is separate
// from the daemon's, because a daemon removes all VIPs in its ledger that its services don't need.
func newDirect(o Options) (*Host, error) {
	o.RunDir = filepath.Join(o.RunDir, "real-server")
	h, err := New(o)
	if err != nil {
		return nil, err
	}
	if h.view, err = readView(h.nl); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	var held snap.Map[netip.Addr, balancer.Name]
	for a := range h.ledger.Direct {
		held = held.Set(a, "")
	}
	h.want.Direct = held
	return h, nil
}

// direct removes unwanted VIPs from lo.
func (c *cleanup) direct() {
	h := c.host
	if !c.dry {
		done, err := h.releaseDirect()
		c.done = append(c.done, done...)
		c.note(err)
		return
	}
	for _, a := range slices.SortedFunc(maps.Keys(h.ledger.Direct), netip.Addr.Compare) {
		if !h.want.Direct.Has(a) {
			c.done = append(c.done, fmt.Sprintf("remove address %s from lo", a))
		}
	}
}
