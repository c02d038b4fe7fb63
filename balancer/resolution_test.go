package balancer_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
)

func membersAt(addresses string) (all []balancer.LookupRecord) {
	for _, a := range strings.Fields(addresses) {
		all = append(all, balancer.LookupRecord{Addr: netip.MustParseAddr(a), Weight: 1})
	}
	return all
}

// TestReplacedAnswers replaces the answer to a lookup with another answer. The former answer's
// members must remain until a new member passes all of its checks. Without checks, the new answer
// must replace them at once.
func TestReplacedAnswers(t *testing.T) {
	const old, new1, new2, old6, new6 = "192.0.2.1", "192.0.2.11", "192.0.2.12", "2001:db8::1", "2001:db8::11"
	for name, c := range map[string]struct {
		unchecked             bool
		members, former, next string
		failure               string
		up, half, down        string // members that pass all checks, only the first check, or none
		uncheckable           bool   // no check can run
		want                  string
	}{
		"no new member is checked": {members: old, next: new1 + " " + new2, up: old, want: old},
		"a new member passes":      {members: old, next: new1 + " " + new2, up: old + " " + new2},
		"only one of its ports":    {members: old, next: new1, up: old, half: new1, want: old},
		"one port of the old":      {members: old, next: new1, half: old, want: old},
		"the old has no verdict":   {members: old, next: new1, want: old},
		"the old fails":            {members: old, next: new1, down: old},
		"no verdict, two answers":  {members: new2, former: old, next: new1, want: old},
		"a member is in both":      {members: old + " " + new1, next: new1, up: old + " " + new1},
		"it failed":                {members: old + " " + new1, next: new1, up: old, down: new1, want: old},
		"checks can't run":         {uncheckable: true, members: old, next: new1},
		"they can't run, but fail": {uncheckable: true, members: old, next: new1, up: old, down: new1, want: old},
		"former, down now":         {members: new1, former: old, next: new1, want: old},
		"former, back":             {members: new1, former: old, next: old, want: ""},
		"no checks":                {unchecked: true, members: old, next: new1},
		"no checks, no answer":     {unchecked: true, former: old, failure: "SERVFAIL", want: old},
		"no answer":                {former: old, failure: "SERVFAIL", want: old},
		"each family":              {members: old + " " + old6, next: new1 + " " + new6, up: old + " " + old6 + " " + new1, want: old6},
		"a family without answer":  {members: old, former: old6, next: old, failure: "SERVFAIL", up: old, want: old6},
		"a family was removed":     {members: old + " " + old6, next: old, up: old + " " + old6},
		"removed, none passes":     {members: old + " " + old6, next: new1, up: old + " " + old6, want: old + " " + old6},
	} {
		t.Run(name, func(t *testing.T) {
			var in balancer.Inputs
			s := &balancer.Service{Name: "db", Ports: []balancer.Port{{Name: "a", Port: 80, TargetPort: 8080}, {Name: "b", Port: 81, TargetPort: 8081}}}
			s.Endpoints = []balancer.Endpoint{{Name: "db.example.org"}}
			if !c.unchecked {
				s.Health = &balancer.Health{}
			}
			verdict := func(v balancer.Verdict, addresses string, ports ...uint16) {
				for _, m := range membersAt(addresses) {
					for _, port := range ports {
						in.Health = in.Health.Set(balancer.Target{Service: "db", Addr: m.Addr, Port: port}, v)
					}
				}
			}
			verdict(balancer.HealthUp, c.up, 8080, 8081)
			verdict(balancer.HealthUp, c.half, 8080)
			verdict(balancer.HealthDown, c.down, 8080, 8081)
			l := balancer.Lookup{Kind: balancer.HostLookup, Name: "db.example.org", V4: true, V6: true}
			before := &balancer.Resolution{Records: membersAt(c.members), Former: membersAt(c.former)}
			next := &balancer.Resolution{Records: membersAt(c.next), Failure: c.failure}
			uncheckable := func(balancer.Target) bool { return c.uncheckable }
			after := next.After(before, s, &in, l, uncheckable)
			if got, want := fmt.Sprint(after.Former), fmt.Sprint(membersAt(c.want)); got != want {
				t.Errorf("former members = %s, want %s", got, want)
			}
			if again := next.After(after, s, &in, l, uncheckable); again != after {
				t.Errorf("After with the same answer changed %v to %v", after, again)
			}
		})
	}
}

// TestFormerEndpointsServe compiles a service whose lookup has a new answer and former members.
// Until a new member passes its check, the former members must get all connections. Until then,
// panic_threshold must not count the new members.
func TestFormerEndpointsServe(t *testing.T) {
	const health = `, "health": {"type": "tcp", "panic_threshold": 60}`
	l := balancer.Lookup{Kind: balancer.HostLookup, Name: "db1.example.org", V4: true}
	env := balancer.Env{Capabilities: balancer.Capabilities{Mode: "test", Protocols: []balancer.Protocol{balancer.TCP}, Forwards: []balancer.Forward{balancer.NATForward}}}
	for name, c := range map[string]struct{ former, up, down, want, reason string }{
		"not checked yet": {"192.0.2.1", "192.0.2.1", "", "192.0.2.1:active 192.0.2.5:untested 192.0.2.6:untested", ""},
		"checks fail": {
			"192.0.2.1", "192.0.2.1", "192.0.2.5 192.0.2.6", "192.0.2.1:active 192.0.2.5:down 192.0.2.6:down",
			"endpoints[0].address: looking up db1.example.org: no endpoint of the new answer (2) passes its checks: the previous endpoints (1) stay in use",
		},
		"a check passes":          {"192.0.2.1", "192.0.2.1 192.0.2.5", "", "192.0.2.1:active 192.0.2.5:active 192.0.2.6:untested", ""},
		"no former":               {"", "", "", "192.0.2.5:active 192.0.2.6:active", ""},
		"the former is down":      {"192.0.2.1", "", "192.0.2.1", "192.0.2.1:down 192.0.2.5:active 192.0.2.6:active", ""},
		"half of the former down": {"192.0.2.1 192.0.2.2", "192.0.2.1", "192.0.2.2 192.0.2.5", "192.0.2.1:active 192.0.2.2:active 192.0.2.5:down 192.0.2.6:untested", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var in balancer.Inputs
			s := decodeByName(t, health, "")
			s.Endpoints = s.Endpoints[:1]
			in.Services = in.Services.Set(s.Name, s)
			in.Resolved = in.Resolved.Set(balancer.LookupID{Service: s.Name, Lookup: l}, &balancer.Resolution{Records: membersAt("192.0.2.5 192.0.2.6"), Former: membersAt(c.former)})
			for addresses, v := range map[string]balancer.Verdict{c.up: balancer.HealthUp, c.down: balancer.HealthDown} {
				for _, m := range membersAt(addresses) {
					in.Health = in.Health.Set(balancer.Target{Service: s.Name, Addr: m.Addr, Port: 5432}, v)
				}
			}
			desired := new(balancer.Compiler).Next(env, in, time.Now())
			var got []string
			for _, f := range desired.Frontends.All() {
				for _, b := range f.Backends {
					got = append(got, b.Addr.Addr().String()+":"+string(b.State))
				}
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("backends = %s\nwant %s", text, c.want)
			}
			var problems []string
			if all := desired.Problems.At(s.Name); all != nil {
				for _, p := range *all {
					problems = append(problems, p.Field+": "+p.Text)
				}
			}
			if text := strings.Join(problems, "\n"); c.reason != "" && !strings.Contains(text, c.reason) {
				t.Errorf("problems = %q, want %q", text, c.reason)
			}
		})
	}
}

// TestFormerServeTheirOwnLookup compiles a service with an address and a host name, whose lookup
// has a former member. Only the former member passes its check. It must replace only the new member
// of its own lookup, so panic_threshold must make the defined address serve.
func TestFormerServeTheirOwnLookup(t *testing.T) {
	s := decodeByName(t, `, "health": {"type": "tcp", "panic_threshold": 60}`, "")
	s.Endpoints = append(s.Endpoints[:1:1], balancer.Endpoint{Address: netip.MustParseAddr("192.0.2.9"), Weight: 1})
	var in balancer.Inputs
	in.Services = in.Services.Set(s.Name, s)
	l := balancer.Lookup{Kind: balancer.HostLookup, Name: "db1.example.org", V4: true}
	in.Resolved = in.Resolved.Set(balancer.LookupID{Service: s.Name, Lookup: l}, &balancer.Resolution{Records: membersAt("192.0.2.5"), Former: membersAt("192.0.2.1")})
	for address, v := range map[string]balancer.Verdict{"192.0.2.1": balancer.HealthUp, "192.0.2.5": balancer.HealthDown, "192.0.2.9": balancer.HealthDown} {
		in.Health = in.Health.Set(balancer.Target{Service: s.Name, Addr: netip.MustParseAddr(address), Port: 5432}, v)
	}
	env := balancer.Env{Capabilities: balancer.Capabilities{Mode: "test", Protocols: []balancer.Protocol{balancer.TCP}, Forwards: []balancer.Forward{balancer.NATForward}}}
	var got []string
	for _, f := range new(balancer.Compiler).Next(env, in, time.Now()).Frontends.All() {
		for _, b := range f.Backends {
			got = append(got, b.Addr.Addr().String()+":"+string(b.State))
		}
	}
	if text, want := strings.Join(got, " "), "192.0.2.1:active 192.0.2.5:down 192.0.2.9:active"; text != want {
		t.Errorf("backends = %s\nwant %s", text, want)
	}
}
