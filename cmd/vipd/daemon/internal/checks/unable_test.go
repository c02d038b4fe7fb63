package checks

import (
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/dataplane/probe"
)

// TestUnableForgets removes a service whose checks can't run. Its results must be dropped, so a
// service that is added again starts with no results.
func TestUnableForgets(t *testing.T) {
	var u unable
	var services, none snap.Map[balancer.Name, *balancer.Service]
	services = services.Set("web", &balancer.Service{Name: "web", Health: &balancer.Health{Fall: 2}})
	checked := map[balancer.Target]bool{}
	is := func(t balancer.Target, check int) bool { return checked[t] }
	one := balancer.Target{Service: "web", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}
	two := balancer.Target{Service: "web", Addr: netip.MustParseAddr("192.0.2.2"), Port: 80}
	checked[one], checked[two] = true, true
	lacking := func(t balancer.Target) probe.TargetResult {
		return probe.TargetResult{Target: t, Rules: health.Rules{Fall: 2}, Result: health.Result{Outcome: health.NotRun, Text: "no such program"}}
	}
	for _, at := range []balancer.Target{one, one, two} {
		u.add(lacking(at))
	}
	if problems, n := u.problems(services, is); n != 1 || len(problems) != 1 {
		t.Errorf("targets = %d, problems = %v; want 1 and 1", n, problems)
	}
	u.add(lacking(two))
	const want = "192.0.2.1:80 and 1 more endpoint can't be checked from here: no such program"
	if problems, n := u.problems(services, is); n != 2 || len(problems) != 1 || problems[0].Text != want {
		t.Errorf("two endpoints: targets = %d, problems = %v; want 2 and %q", n, problems, want)
	}
	clear(checked)
	if problems, n := u.problems(none, is); n != 0 || len(problems) != 0 || len(u.rows) != 0 {
		t.Errorf("without the service: targets = %d, problems = %v, rows = %v, want none", n, problems, u.rows)
	}
	checked[one], checked[two] = true, true
	if problems, n := u.problems(services, is); n != 0 || len(problems) != 0 {
		t.Errorf("service added again without results: targets = %d, problems = %v, want none", n, problems)
	}
}

// TestUncheckable makes the second of a target's two checks unable to run. The target must be
// uncheckable after Fall such results, until the check runs again. Another target must be
// uncheckable only if its service has no checks.
func TestUncheckable(t *testing.T) {
	at := func(service balancer.Name, address string) balancer.Target {
		return balancer.Target{Service: service, Addr: netip.MustParseAddr(address), Port: 80}
	}
	one := at("web", "192.0.2.1")
	var c Checks
	c.all = c.all.Set(one, health.Subject{Next: &health.Subject{}})
	result := func(o health.Outcome) {
		c.unable.add(probe.TargetResult{Target: one, Check: 1, Rules: health.Rules{Fall: 2}, Result: health.Result{Outcome: o}})
	}
	expect := func(when string, want bool) {
		t.Helper()
		if got := c.Uncheckable(one); got != want {
			t.Errorf("%s: Uncheckable = %t, want %t", when, got, want)
		}
	}
	expect("no result", false)
	result(health.NotRun)
	expect("one result", false)
	result(health.NotRun)
	expect("Fall results", true)
	result(health.Failed)
	expect("the check runs again", false)
	for target, want := range map[balancer.Target]bool{at("web", "192.0.2.2"): false, at("other", "192.0.2.1"): true} {
		if got := c.Uncheckable(target); got != want {
			t.Errorf("Uncheckable(%s) = %t, want %t", target, got, want)
		}
	}
}
