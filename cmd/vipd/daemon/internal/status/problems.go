package status

import (
	"fmt"
	"maps"
	"slices"

	"vipd/balancer"
)

// Problems collects everything that somebody should know: of the configuration, the store, the services, the mode, the
// host, and the frontends that can't be carried out.
func (v *View) Problems() []balancer.Problem {
	s := v.State
	all := append([]balancer.Problem{}, s.Snapshot.Problems...) // JSON writes it as []
	for _, p := range s.Problems {                              // a file that can't be read at all is the store's problem too: once is enough
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	if v.Mode.Fallback {
		all = append(all, balancer.Problem{
			Severity: balancer.SeverityNearest, Origin: balancer.Origin{File: v.from.ConfigFile}, Field: "mode",
			Text: fmt.Sprintf("%s mode serves instead of %s: %s", v.Mode.Name, v.State.Config.Mode, v.Mode.Reason),
		})
	}
	for _, of := range s.Desired.Problems.All() {
		all = append(all, *of...)
	}
	all = append(all, s.Lacking...)
	all = append(all, v.LiveProblems()...)
	for _, key := range slices.SortedFunc(maps.Keys(v.Sync.Failing), balancer.Key.Compare) {
		f := s.Desired.Frontends.At(key)
		if f == nil {
			all = append(all, balancer.Problem{
				Severity: balancer.SeverityError, Text: fmt.Sprintf("%s is not removed: %v", key, v.Sync.Failing[key]),
			})
			continue
		}
		p := balancer.Problem{
			Severity: balancer.SeverityError, Service: f.Service,
			Text: fmt.Sprintf("%s is not applied: %v", key, v.Sync.Failing[key]),
		}
		if service := s.Snapshot.Services.At(f.Service); service != nil {
			p.Origin = service.Origin.At("")
		}
		all = append(all, p)
	}
	return all
}

// LiveProblems are those of the problems that come and go without a change of the state, the mode or what is applied: those of
// the host, of checks, and of being one of a fleet.
func (v *View) LiveProblems() (all []balancer.Problem) {
	s := v.State
	all = append(all, v.from.Fleet.Problems(s.Snapshot.Connected)...)
	all = append(all, v.from.Checks.Problems(s.Snapshot.Connected)...)
	for _, p := range v.from.HostProblems() {
		if service := s.Snapshot.Services.At(p.Service); service != nil && p.Origin == (balancer.Origin{}) {
			p.Origin = service.Origin.At(p.Field) // the host knows addresses, not files
		}
		all = append(all, p)
	}
	return all
}
