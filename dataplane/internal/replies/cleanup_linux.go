package replies

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nft"
)

// Cleanup deletes the objects of both families. It returns a description of each step. A dry run
// changes nothing.
func Cleanup(dry bool) (done []string, failed error) {
	done, failed = nft.Cleanup(dry, tableName, tableName+trialSuffix)
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return done, errors.Join(failed, fmt.Errorf("opening a route socket: %w", err))
	}
	defer h.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		more, err := unroute(h, family, dry)
		done, failed = append(done, more...), errors.Join(failed, err)
	}
	return done, failed
}

// unroute deletes the rules and routes of a family.
func unroute(h *netlink.Handle, family int, dry bool) (done []string, failed error) {
	do := func(what string, do func() error) {
		if !dry {
			if err := do(); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", what, err))
				return
			}
		}
		done = append(done, what)
	}
	rules, err := ourRules(h, family)
	routes, failing := ourRoutes(h, family)
	for _, r := range rules {
		do(fmt.Sprintf("delete the routing rule for mark %#x and table %d", r.Mark, r.Table), func() error { return h.RuleDel(&r) })
	}
	for _, r := range routes {
		do(fmt.Sprintf("delete the route in table %d", r.Table), func() error { return h.RouteDel(&r) })
	}
	return done, errors.Join(failed, err, failing)
}

// ourRules returns the rules with vipd's protocol and table. A kernel that does not support the
// family has none.
func ourRules(h *netlink.Handle, family int) (ours []netlink.Rule, err error) {
	all, err := h.RuleList(family)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("reading routing rules: %w", err)
	}
	for _, r := range all {
		if r.Protocol == protocol && r.Table == routeTable && r.Family == family {
			ours = append(ours, r)
		}
	}
	return ours, nil
}

// ourRoutes returns the routes in vipd's table. The kernel lists only this table, because the main
// table may have a million routes. A kernel that lacks the table or the family has none.
func ourRoutes(h *netlink.Handle, family int) (ours []netlink.Route, err error) {
	if err := h.SetStrictCheck(true); err != nil {
		return nil, fmt.Errorf("preparing to read the routes in table %d: %w", routeTable, err)
	}
	defer func() { _ = h.SetStrictCheck(false) }() // other kinds of requests would fail the check
	filter := &netlink.Route{Table: routeTable, Protocol: protocol}
	err = h.RouteListFilteredIter(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL, func(r netlink.Route) bool {
		ours = append(ours, r)
		return true
	})
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil && !(errors.Is(err, netlink.ErrDumpInterrupted) && len(ours) > 0): // routes in other tables may have changed
		return nil, fmt.Errorf("reading the routes in table %d: %w", routeTable, err)
	}
	return ours, nil
}
