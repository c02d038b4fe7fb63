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
)

// unable keeps which checks this node can't run: results that say nothing of the endpoint, as many in a row as would
// take it down if they were failures. Such an endpoint keeps its verdict, and looks well.
type unable struct {
	some atomic.Bool // rows is not empty

	mu   sync.Mutex // guards rows; nothing is called with it held
	rows map[balancer.Target]row

	said map[balancer.Name]excuse // belongs to the caller of problems
}

// row is a row of results that were none.
type row struct {
	length int
	text   string // of the latest
}

// excuse is what is said of a service: one endpoint and the reason, as it was first. The reasons of others, and later
// ones, may be others.
type excuse struct {
	target balancer.Target
	text   string
}

// heard takes in a result, and reports whether the row has come to as many as it takes, or such a row has ended.
func (u *unable) heard(t balancer.Target, res health.Result, fall int) bool {
	if res.Outcome != health.NotRun && !u.some.Load() {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.rows[t]
	if res.Outcome != health.NotRun {
		delete(u.rows, t)
		u.some.Store(len(u.rows) > 0)
		return was.length >= fall
	}
	if u.rows == nil {
		u.rows = map[balancer.Target]row{}
	}
	u.rows[t] = row{was.length + 1, res.Text}
	u.some.Store(true)
	return was.length+1 == fall
}

// problems says, once for each service, that endpoints of it can't be checked, and of how many that is true in all. Those
// that this node does not check any more are forgotten.
func (u *unable) problems(services snap.Map[balancer.Name, *balancer.Service], checked func(balancer.Target) bool) (all []balancer.Problem, targets int) {
	if !u.some.Load() && len(u.said) == 0 {
		return nil, 0
	}
	u.mu.Lock()
	rows := maps.Clone(u.rows)
	u.mu.Unlock()
	first := map[balancer.Name]balancer.Target{}
	is := map[balancer.Target]string{}
	var gone []balancer.Target
	for t, row := range rows {
		s := services.At(t.Service)
		switch {
		case !checked(t):
			gone = append(gone, t)
			continue
		case s == nil || s.Health == nil || row.length < s.Health.Fall:
			continue
		}
		is[t] = row.text
		if f, there := first[t.Service]; !there || t.Compare(f) < 0 {
			first[t.Service] = t
		}
	}
	u.forget(gone)
	said := map[balancer.Name]excuse{}
	for name, t := range first {
		x := excuse{t, strings.TrimPrefix(is[t], "not run: ")}
		if before, there := u.said[name]; there && is[before.target] != "" {
			x = before
		}
		said[name] = x
	}
	u.said = said
	for _, name := range slices.Sorted(maps.Keys(said)) {
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityWarning, Origin: services.At(name).Origin.At("health"), Service: name, Field: "health",
			Text: fmt.Sprintf("%s can't be checked from here: %s", said[name].target.Address(), said[name].text),
		})
	}
	return all, len(is)
}

func (u *unable) forget(gone []balancer.Target) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range gone {
		delete(u.rows, t)
	}
	u.some.Store(len(u.rows) > 0)
}
