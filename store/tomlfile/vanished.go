package tomlfile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// A mistake outside a service can hide the service's definition. Examples are [service.web] instead
// of [services.web], a lost heading, and a file that can't be parsed. While such an error exists,
// tables that have vanished (are no longer in any file) stay in their last good state. They are
// removed once the files have no such error, or by a reload with Prune.

// hider returns the first error that may hide a definition, or nil.
func (l *loader) hider() *balancer.Problem {
	var first *balancer.Problem
	consider := func(p balancer.Problem) {
		if l.mayHide(&p) && (first == nil || l.compareProblems(p, *first) < 0) {
			first = &p
		}
	}
	for _, p := range l.main.mistakes {
		consider(p)
	}
	if l.placeErr != nil {
		consider(l.placeProblem())
	}
	for path := range l.merge.faulty {
		for _, p := range l.merge.files[path].problems {
			consider(p)
		}
	}
	return first
}

// mayHide reports whether p is an error that may hide the definition of a service. Such an error
// concerns no service, a service as a whole, a service that was never in use, such as a misspelled
// name, or a value that may belong to another table. A wrong value in a service does not hide other
// definitions.
func (l *loader) mayHide(p *balancer.Problem) bool {
	return isError(*p) && (p.Service == "" || p.Field == "" || p.Misplaced || !l.merge.services.values.Has(p.Service))
}

// blame adds the names of tables that no file defines to the problem that may hide them. Mistakes
// in the settings are reported elsewhere, so that problem may be missing from problems. If it is,
// blame appends it.
func (l *loader) blame(problems []balancer.Problem) []balancer.Problem {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(l.merge.services.held)) {
		names = append(names, string(name))
	}
	for _, addr := range slices.SortedFunc(maps.Keys(l.merge.vips.held), netip.Addr.Compare) {
		names = append(names, decode.Join("vips", addr.String()))
	}
	cause := l.hider()
	if len(names) == 0 || cause == nil {
		return problems
	}
	const shown = 5
	if more := len(names) - shown; more > 0 {
		names = append(names[:shown], fmt.Sprintf("%d more", more))
	}
	blamed := *cause
	blamed.Text += fmt.Sprintf("; this error might hide definitions (%s), which stay in use until the error is fixed or vipctl reload --prune removes them",
		strings.Join(names, ", "))
	if i := slices.Index(problems, *cause); i >= 0 {
		problems[i] = blamed
		return problems
	}
	return append(problems, blamed)
}

// retained returns the services that stay in their last good state because of an error. vanished
// contains the services among them that no file defines.
func (l *loader) retained() (all, vanished []balancer.Name) {
	services := &l.merge.services
	vanished = slices.Sorted(maps.Keys(services.held))
	names := map[balancer.Name]bool{}
	maps.Copy(names, services.held)
	add := func(path string, name balancer.Name) {
		if services.holders[name] == path && services.values.Has(name) {
			names[name] = true
		}
	}
	for path := range l.merge.faulty {
		c := l.merge.files[path]
		if c.stale {
			for name := range c.services {
				add(path, name)
			}
			continue
		}
		for _, p := range c.problems {
			if d, defined := c.services[p.Service]; defined && d.value == nil {
				add(path, p.Service)
			}
		}
	}
	if l.placeErr != nil { // the previous content stays in use
		for path, c := range l.merge.files {
			for name := range c.services {
				if path != l.path {
					add(path, name)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), vanished
}
