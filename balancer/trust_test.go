package balancer_test

import (
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// TestTrust has services from etcd claim no address that would take this host's own traffic, unless its configuration
// allows that, while files may say what they like.
func TestTrust(t *testing.T) {
	own := netip.MustParseAddr("192.168.1.5")
	env := balancer.Env{Local: []netip.Addr{own, netip.MustParseAddr("2001:db8::5")}, Capabilities: plainEnv().Capabilities}
	refused := []string{"127.0.0.53", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "192.168.1.5", "2001:db8::5"}
	for _, c := range []struct {
		allowed   []string
		vips      []string
		fromFile  bool
		fromFleet bool
		saying    string
	}{
		{nil, []string{"10.96.0.10", "fd00:96::10"}, true, true, ""},
		{nil, refused, true, false, "unless addresses.allowed contains"},
		{[]string{"10.96.0.0/16"}, []string{"10.96.0.10"}, true, true, ""},
		{[]string{"10.96.0.0/16"}, []string{"8.8.8.8", "10.97.0.1", "192.168.1.5", "fd00:96::10"}, false, false, "does not contain it"},
		{[]string{"127.0.0.0/8", "192.168.1.5/32"}, []string{"127.0.0.53", "192.168.1.5"}, true, true, ""},
	} {
		env.Allowed = nil
		for _, p := range c.allowed {
			env.Allowed = append(env.Allowed, netip.MustParsePrefix(p))
		}
		for _, vip := range c.vips {
			for origin, want := range map[balancer.Origin]bool{{File: "vipd.toml", Line: 3}: c.fromFile, {Key: "/vipd/services/web"}: c.fromFleet} {
				served, problems := claims(env, origin, vip)
				if served != want {
					t.Errorf("allowed %v: %s from %v: served %v, want %v", c.allowed, vip, origin, served, want)
				}
				if !want && (len(problems) != 1 || problems[0].Field != "vips[0]" || !strings.Contains(problems[0].Text, c.saying)) {
					t.Errorf("allowed %v: %s from %v: problems %v", c.allowed, vip, origin, problems)
				}
			}
		}
	}
}

// claims compiles a service with one VIP, and returns whether that is served.
func claims(env balancer.Env, origin balancer.Origin, vip string) (bool, []balancer.Problem) {
	addr := netip.MustParseAddr(vip)
	s := &balancer.Service{
		Name: "web", Origin: origin, VIPs: []netip.Addr{addr}, Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}},
		Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward,
	}
	d := balancer.Compile(env, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
	var problems []balancer.Problem
	if of := d.Problems.At("web"); of != nil {
		problems = *of
	}
	return d.Frontends.Has(balancer.Key{Addr: addr, Port: 80, Proto: balancer.TCP}), problems
}

// TestTrustExec has checks of services from etcd run no programs, unless the configuration allows that.
func TestTrustExec(t *testing.T) {
	fields := map[string]any{
		"vips": []any{"10.96.0.10"}, "ports": []any{map[string]any{"port": int64(80)}},
		"health": map[string]any{"type": "exec", "command": []any{"/bin/true"}},
	}
	for origin, want := range map[balancer.Origin]map[bool]bool{
		{File: "vipd.toml"}:         {true: false, false: false},
		{Key: "/vipd/services/web"}: {true: false, false: true},
	} {
		for allow, refused := range want {
			s, problems := balancer.DecodeService("web", fields, nil, func(string) balancer.Origin { return origin }, balancer.SeverityError)
			if s == nil {
				t.Fatal(problems)
			}
			d := balancer.Compile(balancer.Env{AllowExec: allow, Capabilities: plainEnv().Capabilities},
				balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
			got := false
			for _, p := range *d.Problems.At("web") {
				got = got || p.Field == "health.type" && strings.Contains(p.Text, "health.allow_exec")
			}
			if got != refused {
				t.Errorf("exec check from %v, allow_exec %v: refused %v, want %v", origin, allow, got, refused)
			}
		}
	}
}
