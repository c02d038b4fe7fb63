package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"vipd/balancer/lib/atomicfile"
	"vipd/dataplane/guard"
)

// Cleanup removes everything that a Host ever created here, even if the process was killed, and
// nothing else. It returns a description of each step. A dry run changes nothing. Cleanup continues
// after errors, and returns all of them.
func Cleanup(ctx context.Context, o Options, dryRun bool) ([]string, error) {
	h, err := New(o)
	if err != nil {
		return nil, err
	}
	c := cleanup{host: h, dry: dryRun}
	defer func() { _ = h.Close() }() // an error of Close is harmless
	if h.view, err = readView(h.nl); err != nil {
		return nil, err
	}
	h.adopt()
	c.direct()
	c.addresses() // before the guard, which protects the other ports of the addresses
	done, err := guard.Cleanup(ctx, dryRun)
	c.done = append(c.done, done...)
	c.note(err)
	released, err := ReleaseDirect(o, nil, dryRun) // before the sysctls, which the direct-routing VIPs need
	c.done = append(c.done, released...)
	c.note(err)
	c.sysctls()
	c.devices()
	for _, file := range atomicfile.Leftovers(h.ledger.path) {
		c.do("remove file "+file, func() error { return os.Remove(file) })
	}
	if !dryRun {
		c.note(h.ledger.save())
	}
	return c.done, errors.Join(c.errs...)
}

// cleanup is the state of one call to Cleanup.
type cleanup struct {
	host *Host
	dry  bool
	done []string
	errs []error
}

func (c *cleanup) note(err error) {
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

func (c *cleanup) do(what string, do func() error) {
	if !c.dry {
		if err := do(); err != nil {
			c.errs = append(c.errs, err)
			return
		}
	}
	c.done = append(c.done, what)
}

// addresses removes the ledger's addresses that still exist, and every route with vipd's mark.
func (c *cleanup) addresses() {
	h := c.host
	for _, a := range slices.SortedFunc(maps.Keys(h.ledger.Addresses), netip.Addr.Compare) {
		devices := slices.DeleteFunc(h.ledger.devices(a), func(d string) bool { return !h.view.has(a, h.view.link(d)) })
		if len(devices) == 0 {
			h.unrecord(h.at(a))
			continue
		}
		c.do(fmt.Sprintf("remove address %s from %s", a, strings.Join(devices, ", ")), func() error { return h.removeOurs(h.at(a)) })
	}
	for _, r := range append(h.ourRoutes(routeProtocol), h.ourRoutes(plainProtocol)...) {
		c.do(fmt.Sprintf("remove the local route to %s", r.Dst.IP), func() error { return c.removeRoute(r) })
	}
}

func (c *cleanup) removeRoute(r netlink.Route) error {
	if err := c.host.nl.RouteDel(&r); err != nil {
		return fmt.Errorf("removing the local route to %s: %w", r.Dst, err)
	}
	return nil
}

// sysctls restores the sysctls that vipd set, except for values that another program has changed or
// needs.
func (c *cleanup) sysctls() {
	h := c.host
	for _, name := range slices.Sorted(maps.Keys(h.ledger.Sysctls)) {
		r := h.ledger.Sysctls[name]
		now, err := h.sys.Read(name)
		if err != nil || now == r.Old {
			continue
		}
		reason := "another program has set it since"
		if now == r.Set {
			reason = h.neededByOthers(name, now)
		}
		if reason == "" {
			c.done = append(c.done, fmt.Sprintf("set sysctl %s back from %s to %s", name, r.Set, r.Old))
			continue
		}
		c.done = append(c.done, fmt.Sprintf("leave sysctl %s at %s (%s before vipd started): %s", name, now, r.Old, reason))
		if !c.dry {
			h.ledger.dropSysctl(name)
		}
	}
	if !c.dry {
		c.note(restoreSysctls(h.sys, h.ledger, slices.Collect(maps.Keys(h.ledger.Sysctls))))
	}
}

func (c *cleanup) devices() {
	h := c.host
	for _, name := range slices.Sorted(maps.Keys(h.ledger.Links)) {
		if h.view.link(name) != 0 {
			c.done = append(c.done, "remove device "+name)
		}
	}
	if !c.dry {
		c.note(h.removeDevices())
	}
}
