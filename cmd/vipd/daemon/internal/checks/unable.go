package checks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/cmd/internal/wording"
	"vipd/dataplane/probe"
)

// unable records the checks that this node can't run. Such a check says nothing about its endpoint,
// which keeps its verdict and may seem healthy. A check is reported once it could not run fall
// times in a row.
type unable struct {
	some atomic.Bool // set if rows is not empty

	mu   sync.Mutex // guards rows; never held while another package is called
	rows map[checkOf]row

	reported map[balancer.Name]excuse // only the caller of problems uses it
}

// checkOf identifies one of a target's checks.
type checkOf struct {
	target balancer.Target
	check  int
}

// row counts how many times in a row a check could not run.
type row struct {
	length int
	fall   int    // the number of failed attempts from which the row is reported
	text   string // the latest error
}

// excuse is the reported problem of a service: an endpoint and the first reason. It does not change
// when the reasons change.
type excuse struct {
	target balancer.Target
	text   string
}

// add adds a result, and reports whether the problems may have changed. They change if the check
// could not run for the Fall-th time in a row, or if it ran again after that.
func (u *unable) add(h probe.TargetResult) bool {
	if h.Outcome != health.NotRun && !u.some.Load() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	c := checkOf{h.Target, h.Check}
	was := u.rows[c]
	if h.Outcome != health.NotRun {
		delete(u.rows, c)
		u.some.Store(len(u.rows) > 0)
		return was.length > 0 && was.length >= h.Rules.Fall
	}
	if u.rows == nil {
		u.rows = map[checkOf]row{}
	}
	u.rows[c] = row{was.length + 1, h.Rules.Fall, h.Text}
	u.some.Store(true)
	return was.length+1 == h.Rules.Fall
}

// includes reports whether one of a target's checks could not run Fall times in a row.
func (u *unable) includes(t balancer.Target, s health.Subject) bool {
	if !u.some.Load() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	check := 0
	for range s.All() {
		if r := u.rows[checkOf{t, check}]; r.length > 0 && r.length >= r.fall {
			return true
		}
		check++
	}
	return false
}

// problems returns a problem for each service with endpoints that can't be checked, and the total
// number of such endpoints. It drops the rows of endpoints that this node no longer checks.
func (u *unable) problems(services snap.Map[balancer.Name, *balancer.Service], checked func(t balancer.Target, check int) bool) (all []balancer.Problem, targets int) {
	if !u.some.Load() && len(u.reported) == 0 {
		return nil, 0
	}
	u.mu.Lock()
	rows := maps.Clone(u.rows)
	u.mu.Unlock()
	first, count := map[balancer.Name]balancer.Target{}, map[balancer.Name]int{}
	text := map[balancer.Target]string{}
	var gone []checkOf
	for c, row := range rows {
		t := c.target
		switch {
		case !checked(t, c.check):
			gone = append(gone, c)
			continue
		case !services.Has(t.Service) || row.length < row.fall:
			continue
		}
		if before, counted := text[t]; counted {
			text[t] = min(before, row.text)
		} else {
			text[t] = row.text
			count[t.Service]++
		}
		if f, there := first[t.Service]; !there || t.Compare(f) < 0 {
			first[t.Service] = t
		}
	}
	u.forget(gone)
	said := map[balancer.Name]excuse{}
	for name, t := range first {
		x := excuse{t, strings.TrimPrefix(text[t], "not run: ")}
		if before, there := u.reported[name]; there && text[before.target] != "" {
			x = before
		}
		said[name] = x
	}
	u.reported = said
	for _, name := range slices.Sorted(maps.Keys(said)) {
		endpoints := said[name].target.Address()
		if more := count[name] - 1; more > 0 {
			endpoints += " and " + wording.Count(more, "more endpoint")
		}
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityWarning, Origin: services.At(name).Origin.At("health"), Service: name, Field: "health", Kind: balancer.Unchecked,
			Text: fmt.Sprintf("%s can't be checked from here: %s", endpoints, said[name].text),
		})
	}
	return all, len(text)
}

func (u *unable) forget(gone []checkOf) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range gone {
		delete(u.rows, c)
	}
	u.some.Store(len(u.rows) > 0)
}
