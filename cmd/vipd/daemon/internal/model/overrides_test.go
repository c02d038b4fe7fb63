package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// web returns a service with two endpoints at one address, and functions that return their targets
// and definitions.
func web(t *testing.T) (in balancer.Inputs, at func(port uint16) balancer.Target, defined func(balancer.Target) []*balancer.Endpoint) {
	addr := netip.MustParseAddr("192.168.1.1")
	endpoint := func(port int64) map[string]any { return map[string]any{"address": addr.String(), "port": port} }
	s, problems := balancer.DecodeService("web", map[string]any{
		"vips": []any{"192.0.2.1"}, "ports": []any{map[string]any{"port": int64(80)}}, "endpoints": []any{endpoint(9001), endpoint(9002)},
	}, nil, func(string) balancer.Origin { return balancer.Origin{} }, balancer.SeverityError)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	in.Services = in.Services.Set(s.Name, s)
	at = func(port uint16) balancer.Target { return balancer.Target{Service: s.Name, Addr: addr, Port: port} }
	defined = func(t balancer.Target) (all []*balancer.Endpoint) {
		for i := range s.Endpoints {
			if t.Port == 0 || s.Endpoints[i].Port == t.Port {
				all = append(all, &s.Endpoints[i])
			}
		}
		return all
	}
	return in, at, defined
}

// TestOverridesInAnyMixture overrides an address and its ports in random order. The last override
// must apply, and an override that equals the definition must not be stored.
func TestOverridesInAnyMixture(t *testing.T) {
	in, at, defined := web(t)
	yes, no, one, five := true, false, 1, 5
	userspace, _ := modes.Find(config.UserspaceMode)
	var o Overrides
	for _, c := range []struct {
		port uint16 // 0 means all ports of the address
		said balancer.Override
		want string
		kept int
	}{
		{0, balancer.Override{Draining: &yes}, "9001:draining/0 9002:draining/0", 1},
		{9001, balancer.Override{Draining: &no}, "9001:active/1 9002:draining/0", 2},
		{0, balancer.Override{Draining: &no}, "9001:active/1 9002:active/1", 0},
		{9001, balancer.Override{Draining: &yes}, "9001:draining/0 9002:active/1", 1},
		{0, balancer.Override{Weight: &five}, "9001:draining/0 9002:active/5", 2},
		{0, balancer.Override{Draining: &no}, "9001:active/5 9002:active/5", 1},
		{9001, balancer.Override{Weight: &one}, "9001:active/1 9002:active/5", 2},
		{0, balancer.Override{Weight: &one}, "9001:active/1 9002:active/1", 0},
	} {
		before, had := o, o.Len()
		o = o.Apply(at(c.port), c.said, defined(at(c.port)), false)
		if before.Len() != had {
			t.Errorf("after %+v: published overrides have changed, want no change", c.said)
		}
		now := in
		now.Overrides = o.over(in.Overrides, in.Overrides)
		var words []string
		for _, f := range new(balancer.Compiler).Next(balancer.Env{Capabilities: userspace.Capabilities()}, now, time.Now()).Frontends.All() {
			for _, b := range f.Backends {
				words = append(words, fmt.Sprintf("%d:%s/%d", b.Addr.Port(), b.State, b.Weight))
			}
		}
		if got := strings.Join(words, " "); got != c.want || o.Len() != c.kept {
			t.Errorf("after %+v at port %d: endpoints = %s with %d overrides, want %s with %d", c.said, c.port, got, o.Len(), c.want, c.kept)
		}
	}
}

// TestFleetDrainBesideLocalWeight combines a fleet's drain of an endpoint with the weight that a
// node sets locally. Both must apply. The merged override must get a new pointer only if the drain
// or the weight changes.
func TestFleetDrainBesideLocalWeight(t *testing.T) {
	in, at, defined := web(t)
	yes, five := true, 5
	local := Overrides{}.Apply(at(9001), balancer.Override{Weight: &five}, defined(at(9001)), false)
	in.Overrides = in.Overrides.Set(at(9001), &balancer.Override{Draining: &yes, By: "ben"})
	now := in
	now.Overrides = local.over(in.Overrides, in.Overrides)
	userspace, _ := modes.Find(config.UserspaceMode)
	for _, f := range new(balancer.Compiler).Next(balancer.Env{Capabilities: userspace.Capabilities()}, now, time.Now()).Frontends.All() {
		if b := f.Backends[0]; b.Addr.Port() != 9001 || b.State != balancer.Draining {
			t.Errorf("%s is %s with weight %d, want draining", b.Addr, b.State, b.Weight)
		}
	}
	if again := local.over(in.Overrides, now.Overrides); again.At(at(9001)) != now.Overrides.At(at(9001)) {
		t.Error("unchanged override keeps its pointer = false, want true")
	}
	if none := local.over(Overrides{}.Map, now.Overrides); none.At(at(9001)).Drains() {
		t.Error("after the fleet's drain is removed: drain applies = true, want false")
	}
}

// TestOverridesLapse lets an override expire. It must be removed when it expires and not before,
// and all other overrides must stay.
func TestOverridesLapse(t *testing.T) {
	_, at, defined := web(t)
	yes, now := true, time.Unix(1e9, 0)
	o := Overrides{}.Apply(at(9001), balancer.Override{Draining: &yes, Expires: now.Add(time.Minute)}, defined(at(9001)), false)
	o = o.Apply(at(9002), balancer.Override{Draining: &yes}, defined(at(9002)), false)
	if next := o.nextExpiry(); !next.Equal(now.Add(time.Minute)) {
		t.Errorf("next expiry = %v, want in a minute", next)
	}
	if same := o.expire(now.Add(time.Minute - 1)); same.Map != o.Map {
		t.Error("before the expiry: overrides changed = true, want false")
	}
	if o = o.expire(now.Add(time.Minute)); o.Len() != 1 || o.At(at(9002)) == nil || !o.nextExpiry().IsZero() {
		t.Errorf("overrides = %d, next expiry = %v, want 1 and none", o.Len(), o.nextExpiry())
	}
}
