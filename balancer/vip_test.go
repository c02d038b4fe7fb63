package balancer_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
)

// TestDecodeVIP decodes valid and invalid settings of VIPs. Each invalid setting must be reported.
// Encoding the decoded valid settings must return the original settings.
func TestDecodeVIP(t *testing.T) {
	full := map[string]any{"hold": "one", "prefer": []any{"gw1", "gw2"}, "group": "edge", "preempt": "5m", "require": "local"}
	v, problems := balancer.DecodeVIP("192.168.1.100", full, nil, balancer.SeverityError)
	if v == nil || len(problems) > 0 {
		t.Fatalf("valid VIP: problems = %v, want none", problems)
	}
	want := balancer.VIPPolicy{
		Hold: balancer.HoldOne, Prefer: []string{"gw1", "gw2"}, Group: "edge", Preempt: balancer.Preempt(5 * time.Minute),
		Require: balancer.RequireLocal, Withdraw: balancer.WithdrawNever,
	}
	if !reflect.DeepEqual(v.VIPPolicy, want) {
		t.Errorf("decoded settings = %+v, want %+v", v.VIPPolicy, want)
	}
	var in balancer.Inputs
	in.Pools = in.Pools.Set("edge", &balancer.Pool{CIDRs: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}, VIPPolicy: want})
	over, _ := balancer.DecodeVIP("fd00::1", map[string]any{"preempt": "never", "require": "node"}, nil, balancer.SeverityError)
	in.VIPs = in.VIPs.Set(over.Addr, over)
	if p := in.PolicyOf(over.Addr); p.Preempt != 0 || p.Require != balancer.RequireNode || p.Group != "edge" || p.Hold != balancer.HoldOne {
		t.Errorf("VIP with its own table and a pool: settings = %+v, want preempt 0, require node, group edge and hold one", p)
	}
	if p := in.PolicyOf(addr("fd00::2")); !reflect.DeepEqual(p, want) {
		t.Errorf("VIP without its own table: settings = %+v, want the pool's settings %+v", p, want)
	}

	for _, c := range []struct {
		addr   string
		fields map[string]any
		want   string
	}{
		{"10.0.0.1", map[string]any{"hold": "two"}, `hold: "two" is not one of each, one`},
		{"10.0.0.1", map[string]any{"holds": "one"}, `holds: unknown field; did you mean "hold"?`},
		{"web", nil, `"web" is not an IP address, such as 192.168.1.11 or fd00::11`},
		{"FD00::1", nil, `write the address as "fd00::1", the only spelling that vipd accepts`},
		{"0.0.0.0", nil, "is the unspecified address, which no host can hold"},
		{"127.0.0.9", map[string]any{"hold": "one"}, `hold: each host has 127.0.0.9 for itself: use hold = "each"`},
		{"10.0.0.1", map[string]any{"hold": "one", "prefer": []any{"a b", "gw1", "gw1"}}, `prefer[0]: "a b" is not a node name: vipctl get nodes lists them
prefer[2]: node gw1 is a duplicate`},
		{"10.0.0.1", map[string]any{"hold": "one", "group": "No"}, `group: "No" is not a valid group name: group names are 1 to 63 characters of a-z, 0-9 and "-", without "-" at either end`},
		{"10.0.0.1", map[string]any{"hold": "one", "preempt": "0s"}, `preempt: 0s is out of range; use 1s to 24h, or "never"`},
		{"10.0.0.1", map[string]any{"hold": "one", "preempt": "soon"}, `preempt: "soon" is neither "never" nor a duration, such as "30s" or "5m"`},
		{"10.0.0.1", map[string]any{"hold": "one", "preempt": "5m"}, `preempt: has no effect without prefer`},
		{"10.0.0.1", map[string]any{"hold": "one", "withdraw": "no_endpoint"}, `withdraw: is for hold = "each"; with "one", use require`},
		{"10.0.0.1", map[string]any{"prefer": []any{"gw1"}, "require": "node"}, `prefer: has no effect without hold = "one": each host holds the VIP
require: has no effect without hold = "one": each host holds the VIP`},
	} {
		_, problems := balancer.DecodeVIP(c.addr, c.fields, nil, balancer.SeverityError)
		var lines []string
		for _, p := range problems {
			lines = append(lines, p.String())
		}
		if got := strings.Join(lines, "\n"); got != c.want {
			t.Errorf("%s %v:\n got %s\nwant %s", c.addr, c.fields, got, c.want)
		}
	}
}

// TestWithdrawnVIPReturns withdraws a VIP while no endpoint is usable. The VIP must return when an
// endpoint is usable, but no sooner than 5 s after its previous return.
func TestWithdrawnVIPReturns(t *testing.T) {
	vip := addr("10.96.0.1")
	var in balancer.Inputs
	in.VIPs = in.VIPs.Set(vip, &balancer.VIP{Addr: vip, Given: []string{"withdraw"}, VIPPolicy: balancer.VIPPolicy{Withdraw: balancer.WithdrawNoEndpoint}})
	env := balancer.Env{Capabilities: balancer.Capabilities{Protocols: []balancer.Protocol{balancer.TCP}, Forwards: []balancer.Forward{balancer.NATForward}}}
	var c balancer.Compiler
	var memory balancer.Memory
	var before balancer.Desired
	now := time.Unix(1_700_000_000, 0).UTC()
	look := func(after time.Duration, endpoints int) string {
		now = now.Add(after)
		s := &balancer.Service{Name: "web", VIPs: []netip.Addr{vip}, Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}}}
		s.Forward = balancer.NATForward
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: addr(fmt.Sprintf("192.168.1.%d", 10+i)), Weight: 1})
		}
		in.Services = in.Services.Set("web", s)
		memory = memory.Expire(now)
		desired := c.Once(env, in.WithMemory(memory))
		memory = memory.After(before, desired, now)
		before = desired
		if !desired.Addresses.Has(vip) {
			t.Fatal("the VIP is missing from the desired addresses")
		}
		for _, f := range desired.Frontends.All() { // a host on standby still serves clients, so Withdrawn does not depend on it
			if f.Withdrawn != (endpoints == 0) {
				t.Errorf("%s with %d endpoints: Withdrawn = %v, want %v", f.Key, endpoints, f.Withdrawn, endpoints == 0)
			}
		}
		return string(desired.VIPStates.At(vip))
	}
	for _, step := range []struct {
		after     time.Duration
		endpoints int
		want      balancer.VIPState
	}{
		{0, 0, balancer.Withdrawn},         // withdrawn initially
		{time.Second, 1, balancer.Serving}, // the VIP returns for the first time
		{time.Second, 0, balancer.Withdrawn},
		{time.Second, 1, balancer.Withdrawn}, // 2 s after its last return
		{2 * time.Second, 0, balancer.Withdrawn},
		{2 * time.Second, 1, balancer.Serving}, // 6 s after its last return
		{time.Second, 2, balancer.Serving},
		{time.Second, 0, balancer.Withdrawn},
		{time.Second, 2, balancer.Withdrawn},
	} {
		if got := look(step.after, step.endpoints); got != string(step.want) {
			t.Fatalf("after %s with %d endpoints: state = %q, want %q", step.after, step.endpoints, got, step.want)
		}
	}
	if next := memory.NextExpiry(); next.Sub(now) != 2*time.Second {
		t.Errorf("next expiry in %s, want 2 s", next.Sub(now))
	}
	if got := look(2*time.Second, 2); got != string(balancer.Serving) {
		t.Errorf("5 s after the VIP's last return: state = %q, want serving", got)
	}
	env.Standby = true
	if got := look(time.Second, 2); got != string(balancer.Withdrawn) {
		t.Errorf("on standby: state = %q, want withdrawn", got)
	}
	env.Standby = false
	if got := look(5*time.Second, 2); got != string(balancer.Serving) {
		t.Errorf("after standby: state = %q, want serving", got)
	}
}

// TestWithdrawnOwnAddress withdraws VIPs, some of which the host has independently of vipd. While
// the host has such a VIP, the frontends on the VIP must not be withdrawn, and a problem must
// report that withdraw has no effect.
func TestWithdrawnOwnAddress(t *testing.T) {
	const warning = `has no effect on %s here, because this host has the address independently of vipd: let only vipd add it, or remove withdraw`
	for _, test := range []struct {
		name, vip string
		external  bool // addresses.bind is false
		local     []string
		withdrawn bool
		warns     bool
	}{
		{"of vipd", "10.96.0.1", false, []string{"10.1.0.1"}, true, false},
		{"of the host", "10.96.0.1", false, []string{"10.1.0.1", "10.96.0.1"}, false, true},
		{"of another program", "fd00:96::1", true, []string{"fd00:96::1"}, false, true},
		{"loopback", "127.0.0.9", false, nil, false, true},
		{"link-local", "169.254.20.10", false, nil, false, false}, // no warning, because vipd may have added the address
	} {
		t.Run(test.name, func(t *testing.T) {
			vip, env := addr(test.vip), plainEnv()
			env.ExternalVIPs = test.external
			s := oneService("web", 1, 0)
			s.VIPs, s.Origin = []netip.Addr{vip}, balancer.Origin{File: "vipd.toml", Line: 3}
			var in balancer.Inputs
			in.Services = in.Services.Set("web", s)
			in.VIPs = in.VIPs.Set(vip, &balancer.VIP{Addr: vip, Given: []string{"withdraw"}, VIPPolicy: balancer.VIPPolicy{Withdraw: balancer.WithdrawNoEndpoint}})
			key := balancer.Key{Addr: vip, Port: 80, Proto: balancer.TCP}
			var c balancer.Compiler
			if !test.external {
				c.Once(env, in) // first, the host does not have the addresses in local
			}
			for _, a := range test.local {
				env.Local = append(env.Local, addr(a))
			}
			d := c.Once(env, in)
			if f := d.Frontends.At(key); f == nil || f.Withdrawn != test.withdrawn {
				t.Errorf("frontend = %+v, want Withdrawn = %v", f, test.withdrawn)
			}
			problems := problemsOf(d.Problems.At("web"))
			want := `vipd.toml:3: service web: vips[0]: withdraw = "no_endpoint" ` + fmt.Sprintf(warning, vip)
			if strings.Contains(problems, want) != test.warns {
				t.Errorf("problems = %s; want one with the text %q = %v", problems, want, test.warns)
			}
			env.Local = nil
			if f := c.Once(env, in).Frontends.At(key); !test.external && test.warns && !vip.IsLoopback() && !f.Withdrawn {
				t.Errorf("after the host lost the address: frontend = %+v, want it withdrawn", f)
			}
		})
	}
}
