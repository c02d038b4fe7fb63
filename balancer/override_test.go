package balancer_test

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"vipd/balancer"
)

// TestOverrideLaws applies random overrides to an endpoint's address and to one of its ports. The
// last value of each field must be effective. Values that equal the definition must not be stored.
func TestOverrideLaws(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		defined := []*balancer.Endpoint{{Weight: r.IntN(3), Draining: r.IntN(2) == 0}}
		var wide, port balancer.Override // the stored overrides for the address and for the port
		weight, draining := defined[0].Weight, defined[0].Draining
		for range 20 {
			change := anyOverride(r)
			if r.IntN(2) == 0 {
				port = valueOf(port.ReplacedBy(change))
				wide = valueOf(change.ChangedFrom(wide, balancer.Override{}, defined, false))
			} else {
				port = valueOf(change.ChangedFrom(port, wide, defined, false))
			}
			switch {
			case change.Weight == nil:
			case *change.Weight == balancer.ResetWeight:
				weight = *first(wide.Weight, &defined[0].Weight)
			default:
				weight = *change.Weight
			}
			if change.Draining != nil {
				draining = *change.Draining
			}
			gotWeight, gotDraining := *first(port.Weight, wide.Weight, &defined[0].Weight), *first(port.Draining, wide.Draining, &defined[0].Draining)
			if gotWeight != weight || gotDraining != draining {
				t.Fatalf("seed %d: after the override %+v: weight = %d, draining = %v; want %d, %v", seed, change, gotWeight, gotDraining, weight, draining)
			}
		}
		back := balancer.Override{Weight: &defined[0].Weight, Draining: &defined[0].Draining}
		port = valueOf(port.ReplacedBy(back))
		kept := back.ChangedFrom(wide, balancer.Override{}, defined, false)
		if !defined[0].Draining && (kept != nil || !reflect.DeepEqual(port, balancer.Override{})) {
			t.Fatalf("seed %d: after an override with the defined values: address override = %+v, port override = %+v, want none", seed, kept, port)
		}
	}
}

func anyOverride(r *rand.Rand) (o balancer.Override) {
	what := 1 + r.IntN(3)
	if what&1 != 0 {
		w := r.IntN(4) + balancer.ResetWeight
		o.Weight = &w
	}
	if what&2 != 0 {
		d := r.IntN(2) == 0
		o.Draining = &d
	}
	return o
}

// TestOverridesWinOverAgents overrides an endpoint whose service has an agent. An override that
// equals the definition must be stored, because it takes precedence over the agent's answer. When
// an operator ends a drain, or resets the weight, the agent's answer must apply again.
func TestOverridesWinOverAgents(t *testing.T) {
	one, two, reset, yes, no := 1, 2, balancer.ResetWeight, true, false
	defined := []*balancer.Endpoint{{Weight: 1}}
	weight := func(n *int) balancer.Override { return balancer.Override{Weight: n} }
	drain := func(is *bool) balancer.Override { return balancer.Override{Draining: is} }
	for name, c := range map[string]struct {
		changes []balancer.Override
		want    balancer.Override
	}{
		"the weight of the definition": {[]balancer.Override{weight(&one)}, weight(&one)},
		"the same weight twice":        {[]balancer.Override{weight(&two), weight(&one), weight(&one)}, weight(&one)},
		"a reset weight":               {[]balancer.Override{weight(&one), weight(&reset)}, balancer.Override{}},
		"an undrain":                   {[]balancer.Override{drain(&no)}, drain(&no)},
		"a second undrain":             {[]balancer.Override{drain(&no), drain(&no)}, drain(&no)},
		"a drain after an undrain":     {[]balancer.Override{drain(&no), drain(&yes), drain(&no)}, balancer.Override{}},
		"a drain and its end":          {[]balancer.Override{drain(&yes), drain(&no)}, balancer.Override{}},
		"an undrain and a weight":      {[]balancer.Override{drain(&no), weight(&one)}, balancer.Override{Weight: &one, Draining: &no}},
		"an undrain and a reset":       {[]balancer.Override{drain(&no), weight(&one), weight(&reset)}, drain(&no)},
	} {
		var got balancer.Override
		for _, change := range c.changes {
			got = valueOf(change.ChangedFrom(got, balancer.Override{}, defined, true))
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: override = %+v, want %+v", name, got, c.want)
		}
	}
}

func valueOf(o *balancer.Override) balancer.Override {
	if o == nil {
		return balancer.Override{}
	}
	return *o
}

func first[T any](of ...*T) *T {
	for _, v := range of {
		if v != nil {
			return v
		}
	}
	return nil
}

func TestOverrideLapses(t *testing.T) {
	now := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	five := 5
	for _, c := range []struct {
		expires time.Time
		want    bool
	}{{time.Time{}, false}, {now.Add(1), false}, {now, true}, {now.Add(-1), true}} {
		o := &balancer.Override{Weight: &five, Expires: c.expires}
		if left := o.Unexpired(now); left != nil && left != o || left == nil != c.want {
			t.Errorf("expires %v: Unexpired(%v) = %+v, want nil = %t", c.expires, now, left, c.want)
		}
	}
}

// TestOverridePartsExpire applies random overrides with expiries. The weight and the draining flag
// must each last until their own expiry.
func TestOverridePartsExpire(t *testing.T) {
	type part struct {
		value any // nil if the part is not set
		end   time.Time
	}
	start := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	defined := []*balancer.Endpoint{{Weight: 1}}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		now, unexpired := start, (*balancer.Override)(nil)
		var weight, drain part
		for step := range 30 {
			now = now.Add(time.Duration(r.IntN(90)) * time.Second)
			for _, p := range []*part{&weight, &drain} {
				if !p.end.IsZero() && !p.end.After(now) {
					*p = part{}
				}
			}
			if unexpired != nil {
				unexpired = unexpired.Unexpired(now)
			}
			change, old := balancer.Override{By: "ana"}, balancer.Override{}
			if unexpired != nil {
				old = *unexpired
			}
			if r.IntN(2) == 0 {
				change.Expires = now.Add(time.Duration(1+r.IntN(300)) * time.Second)
			}
			switch value := 2 + r.IntN(9); r.IntN(4) {
			case 0:
				change.Weight, weight = &value, part{value, change.Expires}
			case 1:
				value = balancer.ResetWeight
				change.Weight, weight = &value, part{}
			default:
				on := r.IntN(2) == 0
				change.Draining, drain = &on, part{}
				if on {
					drain = part{true, change.Expires}
				}
			}
			unexpired = change.ChangedFrom(old, balancer.Override{}, defined, false)
			var got [2]part
			if unexpired != nil {
				w, d := unexpired.Expiries()
				if unexpired.Weight != nil {
					got[0] = part{*unexpired.Weight, w}
				}
				if unexpired.Draining != nil {
					got[1] = part{*unexpired.Draining, d}
				}
			}
			if want := [2]part{weight, drain}; got != want {
				t.Fatalf("seed %d, step %d: parts with their expiries = %v, want %v", seed, step, got, want)
			}
		}
	}
}

// TestOverridePartsKeepSignatures sets an endpoint's weight and drains the endpoint, each as a
// different operator, and then resets the later change. The other part of the override must keep
// its operator's signature.
func TestOverridePartsKeepSignatures(t *testing.T) {
	five, back, yes, no := 5, balancer.ResetWeight, true, false
	ana, ben := balancer.Signature{By: "ana", Reason: "slow disks"}, balancer.Signature{By: "ben", Reason: "kernel"}
	signed := func(by balancer.Signature, o balancer.Override) balancer.Override {
		o.By, o.Reason = by.By, by.Reason
		return o
	}
	weigh, drain := balancer.Override{Weight: &five}, balancer.Override{Draining: &yes}
	for name, c := range map[string]struct {
		first, then, last balancer.Override
		weight, draining  balancer.Signature // after both changes
		left              balancer.Signature // of the part that is not reset
	}{
		"the weight first": {signed(ana, weigh), signed(ben, drain), signed(ben, balancer.Override{Draining: &no}), ana, ben, ana},
		"the drain first":  {signed(ana, drain), signed(ben, weigh), signed(ben, balancer.Override{Weight: &back}), ben, ana, ana},
	} {
		defined := []*balancer.Endpoint{{Weight: 1}}
		unexpired := valueOf(c.then.ChangedFrom(valueOf(c.first.ChangedFrom(balancer.Override{}, balancer.Override{}, defined, false)), balancer.Override{}, defined, false))
		if weight, draining := unexpired.Signatures(); weight != c.weight || draining != c.draining || unexpired.By != "ben" {
			t.Errorf("%s: weight signed by %v, want %v; drain signed by %v, want %v; override = %+v, want By = ben", name, weight, c.weight, draining, c.draining, unexpired)
		}
		left := c.last.ChangedFrom(unexpired, balancer.Override{}, defined, false)
		weight, draining := left.Signatures()
		if left.Weight != nil && weight != c.left || left.Draining != nil && draining != c.left {
			t.Errorf("%s: after the reset: override = %+v, signatures = %v and %v, want %v for the remaining part", name, *left, weight, draining, c.left)
		}
	}
}

// TestOverrideInherits combines a node's override with the fleet's override. Each part must be
// effective until its own expiry, and the node's parts must have priority. A port's override must
// inherit from the override for all ports in the same way.
func TestOverrideInherits(t *testing.T) {
	yes, two, five := true, 2, 5
	hour, day := time.Unix(3600, 0), time.Unix(86400, 0)
	cases := []struct{ node, fleet, want balancer.Override }{
		{
			balancer.Override{Weight: &five, By: "ana"}, balancer.Override{Draining: &yes, Until: hour, Expires: day, By: "ben"},
			balancer.Override{Weight: &five, Draining: &yes, Until: hour, By: "ben", DrainingExpires: day, WeightBy: "ana"},
		},
		{
			balancer.Override{Draining: &yes, By: "ana"}, balancer.Override{Weight: &five, By: "ben", Expires: hour},
			balancer.Override{Weight: &five, Draining: &yes, By: "ana", WeightExpires: hour, WeightBy: "ben"},
		},
		{
			balancer.Override{Weight: &five, Expires: hour}, balancer.Override{Weight: &two, Draining: &yes, Expires: day},
			balancer.Override{Weight: &five, WeightExpires: hour, Draining: &yes, Expires: day},
		},
		{balancer.Override{Weight: &five}, balancer.Override{Weight: &two, By: "ben"}, balancer.Override{Weight: &five}},
		{balancer.Override{Weight: &five}, balancer.Override{By: "ben"}, balancer.Override{Weight: &five}},
	}
	for _, c := range cases {
		got := c.node.Inherit(&c.fleet)
		if w, d := got.Expiries(); *got != c.want {
			t.Errorf("node's %+v with the fleet's %+v = %+v, want %+v; expiries = %v and %v", c.node, c.fleet, *got, c.want, w, d)
		}
	}
	t1 := balancer.Target{Service: "web", Addr: netip.MustParseAddr("10.0.0.1"), Port: 80}
	var in balancer.Inputs
	in.Overrides = in.Overrides.Set(t1, &cases[0].node).Set(balancer.Target{Service: t1.Service, Addr: t1.Addr}, &cases[0].fleet)
	if got := balancer.OverrideOf(&in, t1); *got != cases[0].want {
		t.Errorf("OverrideOf for a port = %+v, want %+v", *got, cases[0].want)
	}
	if alone := (&balancer.Override{Weight: &five}); alone.Inherit(nil) != alone {
		t.Error("Inherit(nil) changed the override")
	}
}
