package balancer

import (
	"net/netip"
	"slices"
)

// After returns the resolution of the lookup l of service s that results when r is the new answer
// and before is the previous resolution. Records that the answer lacks remain in Former until they
// are replaced, so a wrong answer does not cause an outage. If the answer is empty, all records
// remain. Otherwise, only records that pass their checks remain. If no record passes and Former is
// empty, records without a verdict also remain, because no record has a verdict after a restart.
// Former records are replaced when all checks of a new record pass, or immediately if the new
// record has no checks. The function uncheckable reports which checks can't run, and so must not
// delay the replacement. It may be nil.
func (r *Resolution) After(before *Resolution, s *Service, in *Inputs, l Lookup, uncheckable func(Target) bool) *Resolution {
	former := slices.Clone(before.Former)
	passes := func(m LookupRecord) bool { return s.anyPasses(in, l, m) }
	unproven := len(former) == 0 && !slices.ContainsFunc(before.Records, passes)
	for _, m := range before.Records {
		if len(r.Records) == 0 || passes(m) || unproven && !s.anyFails(in, l, []LookupRecord{m}) {
			former = append(former, m)
		}
	}
	present := make(map[netip.AddrPort]bool, len(r.Records))
	for _, m := range r.Records {
		present[m.target()] = true
	}
	replaces := func(m LookupRecord) bool { return s.allPass(in, l, m, uncheckable) }
	replaced := map[bool]bool{true: r.replaces(true, replaces), false: r.replaces(false, replaces)}
	former = slices.DeleteFunc(former, func(m LookupRecord) bool { return present[m.target()] || replaced[m.Addr.Is4()] })
	slices.SortFunc(former, LookupRecord.Compare)
	next := &Resolution{Records: r.Records, Former: slices.Compact(former), Failure: r.Failure}
	if next.Equal(before) {
		return before
	}
	return next
}

func (m LookupRecord) target() netip.AddrPort { return netip.AddrPortFrom(m.Addr, m.Port) }

// replaces reports whether r replaces the former records in an address family. This requires a new
// record in that family that can serve. If a complete answer has no records in the family, a record
// in the other family is sufficient.
func (r *Resolution) replaces(v4 bool, canServe func(LookupRecord) bool) bool {
	own := func(m LookupRecord) bool { return m.Addr.Is4() == v4 }
	if !slices.ContainsFunc(r.Records, own) {
		if r.Failure != "" {
			return false
		}
		own = func(LookupRecord) bool { return true }
	}
	return slices.ContainsFunc(r.Records, func(m LookupRecord) bool { return own(m) && canServe(m) })
}

// anyPasses reports whether an endpoint at m passes any of its checks or has no checks.
func (s *Service) anyPasses(in *Inputs, l Lookup, m LookupRecord) bool {
	return slices.ContainsFunc(s.endpointsAt(in, l, m), func(e *Endpoint) bool {
		return s.isUnchecked(e) || slices.ContainsFunc(s.targetsOf(e), func(t Target) bool { return in.Health.At(t) == HealthUp })
	})
}

// allPass reports whether an endpoint at m has no checks, or all of its checks pass or can't run.
func (s *Service) allPass(in *Inputs, l Lookup, m LookupRecord, uncheckable func(Target) bool) bool {
	unproven := func(t Target) bool {
		v := in.Health.At(t)
		return v != HealthUp && (v != HealthUnknown || uncheckable == nil || !uncheckable(t))
	}
	return slices.ContainsFunc(s.endpointsAt(in, l, m), func(e *Endpoint) bool {
		return s.isUnchecked(e) || !slices.ContainsFunc(s.targetsOf(e), unproven)
	})
}

// anyFails reports whether an endpoint in any of the records fails a check.
func (s *Service) anyFails(in *Inputs, l Lookup, members []LookupRecord) bool {
	fails := func(t Target) bool { return in.Health.At(t) == HealthDown }
	return slices.ContainsFunc(members, func(m LookupRecord) bool {
		return slices.ContainsFunc(s.endpointsAt(in, l, m), func(e *Endpoint) bool {
			return slices.ContainsFunc(s.targetsOf(e), fails)
		})
	})
}

func (s *Service) isUnchecked(e *Endpoint) bool { return s.Health == nil || e.IsUnchecked() }

// targetsOf returns the targets of e, one for each port of s.
func (s *Service) targetsOf(e *Endpoint) []Target {
	targets := make([]Target, len(s.Ports))
	for i := range s.Ports {
		targets[i] = Target{s.Name, e.Address, e.TargetPort(&s.Ports[i])}
	}
	return targets
}

// endpointsAt returns the endpoints that the record m of lookup l adds to s.
func (s *Service) endpointsAt(in *Inputs, l Lookup, m LookupRecord) (all []*Endpoint) {
	if l.Kind != HostLookup {
		return []*Endpoint{new(Endpoint).found(l, m)}
	}
	for _, e := range definedEndpoints(s, in) {
		if !e.Address.IsValid() && e.Name == l.Name {
			all = append(all, e.found(l, m))
		}
	}
	return all
}

// found returns a copy of e at the address in m, a record of lookup l. For discovery, e is the zero
// value, and the record sets all fields.
func (e *Endpoint) found(l Lookup, m LookupRecord) *Endpoint {
	out := *e
	out.Address, out.From = m.Addr, l
	if l.Kind != HostLookup {
		out.Name = m.Host
		out.Port = m.Port
		out.Weight = m.Weight
		out.Backup = m.Backup
	}
	return &out
}

// endpoints returns the endpoints that a lookup has found for e: the endpoints in the latest
// answer, up to a limit, and the endpoints in former answers.
func (r *Resolution) endpoints(l Lookup, e *Endpoint, limit int) (present, former []*Endpoint) {
	if r == nil {
		return nil, nil
	}
	for _, m := range r.Records[:min(limit, len(r.Records))] {
		present = append(present, e.found(l, m))
	}
	for _, m := range r.Former {
		f := e.found(l, m)
		f.Former = true
		former = append(former, f)
	}
	return present, former
}
