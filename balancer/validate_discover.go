package balancer

import (
	"fmt"
	"strings"
)

func (r *tableReader) checkDiscover(d *Discover) {
	if d == nil || r.isBroken("discover") {
		return
	}
	switch {
	case d.DNS == "" && len(d.Exec) == 0:
		r.errorf("discover", `needs either dns, the name of SRV records such as "_pg._tcp.example.org", or exec, a program with its arguments`)
	case d.DNS != "" && len(d.Exec) > 0:
		r.errorf("discover.exec", "dns is also set: remove one of the two")
	case d.DNS != "" && !IsHostName(d.DNS):
		r.errorf("discover.dns", `%q is not a DNS name, such as "_pg._tcp.example.org"`, d.DNS)
	case len(d.Exec) > 0 && (d.Exec[0] == "" || strings.Contains(strings.Join(d.Exec, ""), argSeparator)):
		r.errorf("discover.exec", `%q is not a program with its arguments, such as ["/etc/vipd/members", "web"]`, d.Exec)
	case len(d.Exec) > 0 && isRelativeProgram(d.Exec[0]):
		r.errorf("discover.exec[0]", "%q must be absolute, or a name that is looked up in PATH: each host runs its own program", d.Exec[0])
	}
}

func (u *compiledService) reportUnresolved(in *Inputs) {
	s := u.service
	reported := map[Lookup]bool{}
	report := func(field string, l Lookup) {
		r := in.Resolved.At(LookupID{s.Name, l})
		if r == nil || reported[l] {
			return
		}
		why, remains := r.Failure, "it has no endpoints"
		if n := len(r.Records) + len(r.Former); n > 0 {
			remains = fmt.Sprintf("the known endpoints (%d) are in use", n) // from an earlier answer, or from part of this answer
		}
		if why == "" && len(r.Former) > 0 && s.anyFails(in, l, r.Records) {
			why, remains = fmt.Sprintf("no endpoint of the new answer (%d) passes its checks", len(r.Records)), fmt.Sprintf("the previous endpoints (%d) stay in use", len(r.Former))
		}
		if reported[l] = why != ""; reported[l] {
			u.problem(SeverityWarning, field, "looking up %s: %s: %s", l, why, remains).Kind = Unresolved
		}
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Name != "" {
			report(element("endpoints", i, "address"), s.hostLookup(e))
		}
	}
	for _, e := range definedEndpoints(s, in) { // all other entries are registered endpoints
		if e.Name != "" {
			report("endpoints", s.hostLookup(e))
		}
	}
	if s.Discover != nil {
		u.reportDiscovery(in, report)
	}
}

// reportDiscovery reports a discovery program that may not run, a failed lookup, and endpoints
// beyond discover.max.
func (u *compiledService) reportDiscovery(in *Inputs, report func(field string, l Lookup)) {
	d := u.service.Discover
	field := "discover.dns"
	if d.DNS == "" {
		field = "discover.exec"
	}
	if runsForeignProgram(u.service) {
		u.refuse(Refused, field, "only a service in a node's own files can run a program that finds endpoints, so this program does not run. Use dns, or define the service in the node's own file")
		return
	}
	report(field, d.lookup(u.service.families()))
	if r := in.Resolved.At(LookupID{u.service.Name, d.lookup(u.service.families())}); r != nil && len(r.Records) > d.Max {
		u.problem(SeverityWarning, "discover.max", "%d endpoints were found, but only the first %d are used: raise max, or split the service", len(r.Records), d.Max)
	}
}
