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

// Cleanup removes everything that a Host ever made here, also after a crash, and nothing else. It returns what it did
// in words, or, in a dry run, what it would do. It goes on after errors, and returns them together.
func Cleanup(ctx context.Context, o Options, dryRun bool) ([]string, error) {
	h, err := New(o)
	if err != nil {
		return nil, err
	}
	c := cleaner{host: h, dry: dryRun}
	defer func() { _ = h.Close() }() // nothing depends on it any more
	if h.view, err = readView(h.nl); err != nil {
		return nil, err
	}
	h.adopt()
	c.addresses() // before the guard: without it they would answer on every port
	done, err := guard.Cleanup(ctx, dryRun)
	c.done = append(c.done, done...)
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

// cleaner is one Cleanup under way.
type cleaner struct {
	host *Host
	dry  bool
	done []string
	errs []error
}

func (c *cleaner) note(err error) {
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

// do says what is done, and does it unless this is a dry run.
func (c *cleaner) do(what string, do func() error) {
	if !c.dry {
		if err := do(); err != nil {
			c.errs = append(c.errs, err)
			return
		}
	}
	c.done = append(c.done, what)
}

// addresses removes the ledger's addresses that are there, and every route with our mark.
func (c *cleaner) addresses() {
	h := c.host
	for _, a := range slices.SortedFunc(maps.Keys(h.ledger.Addresses), netip.Addr.Compare) {
		devices := slices.DeleteFunc(h.ledger.devices(a), func(d string) bool { return !h.view.has(a, h.view.link(d)) })
		if len(devices) == 0 {
			h.unrecord(h.at(a))
			continue
		}
		c.do(fmt.Sprintf("remove address %s from %s", a, strings.Join(devices, ", ")), func() error { return h.removeOurs(h.at(a)) })
	}
	for _, r := range append(h.ourRoutes(routeProtocol), h.ourRoutes(spareProtocol)...) {
		c.do(fmt.Sprintf("remove the local route to %s", r.Dst.IP), func() error { return c.removeRoute(r) })
	}
}

func (c *cleaner) removeRoute(r netlink.Route) error {
	if err := c.host.nl.RouteDel(&r); err != nil {
		return fmt.Errorf("removing the local route to %s: %w", r.Dst, err)
	}
	return nil
}

// sysctls restores those that vipd set and that no other program has set or needs since.
func (c *cleaner) sysctls() {
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
		c.done = append(c.done, fmt.Sprintf("leave sysctl %s at %s, which was %s before vipd: %s", name, now, r.Old, reason))
		if !c.dry {
			h.ledger.dropSysctl(name)
		}
	}
	if !c.dry {
		c.note(restoreSysctls(h.sys, h.ledger, slices.Collect(maps.Keys(h.ledger.Sysctls))))
	}
}

// devices removes those that vipd made.
func (c *cleaner) devices() {
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
