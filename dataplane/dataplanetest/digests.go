package dataplanetest

import (
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// Changed yields variants of the frontend that base returns. In each variant, a single field of the
// frontend, its policy or its first backend differs. The yielded string is the field's name.
func Changed(t testing.TB, base func() *balancer.Frontend) iter.Seq2[string, *balancer.Frontend] {
	parts := []struct {
		name string
		of   func(*balancer.Frontend) reflect.Value
	}{
		{"", func(f *balancer.Frontend) reflect.Value { return reflect.ValueOf(f).Elem() }},
		{"Policy.", func(f *balancer.Frontend) reflect.Value { return reflect.ValueOf(&f.Policy).Elem() }},
		{"Backend.", func(f *balancer.Frontend) reflect.Value { return reflect.ValueOf(&f.Backends[0]).Elem() }},
	}
	return func(yield func(string, *balancer.Frontend) bool) {
		for _, part := range parts {
			for i := range part.of(base()).NumField() {
				f := base()
				fields := part.of(f)
				if fields.Field(i).Type() == reflect.TypeFor[balancer.Policy]() {
					continue
				}
				name := part.name + fields.Type().Field(i).Name
				alter(t, fields.Field(i))
				if !yield(name, f) {
					return
				}
			}
		}
	}
}

// alter sets v to a value that is not the zero value, and that no frontend in CheckDigests uses.
func alter(t testing.TB, v reflect.Value) {
	t.Helper()
	values := []any{
		balancer.Key{Addr: netip.MustParseAddr("10.96.0.99"), Proto: balancer.TCP, Port: 1}, true, balancer.Name("x"), "x", 7, time.Hour,
		netip.MustParseAddrPort("10.0.0.99:1"), []balancer.Backend{}, []netip.Addr{netip.MustParseAddr("10.0.0.99")}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, time.Unix(1, 0),
		balancer.Maglev, balancer.NeverSNAT, balancer.DRForward, balancer.DropClients, balancer.ProxyProtocolV1, balancer.Standby,
		balancer.VIPScope, balancer.ClientSource, []balancer.PortRange{81}, balancer.ClientLimits{Connections: 7},
	}
	i := slices.IndexFunc(values, func(x any) bool { return reflect.TypeOf(x) == v.Type() })
	if i < 0 {
		t.Fatalf("alter has no value for type %s, want one", v.Type())
	}
	v.Set(reflect.ValueOf(values[i]))
}

// CheckDigests changes each field of several frontends, one at a time. If a change affects a mode's
// rules, it must also affect the digest, because the engine ignores changes that do not affect the
// digest.
func CheckDigests(t *testing.T, rules func(*balancer.Frontend) string, digest func(*balancer.Frontend) dataplane.Digest) {
	t.Helper()
	seen := 0
	for _, scheduler := range []balancer.Scheduler{balancer.WeightedRoundRobin, balancer.SourceHash} {
		for _, affinity := range []time.Duration{0, time.Minute} {
			base := func() *balancer.Frontend {
				return &balancer.Frontend{
					Key:     balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Proto: balancer.TCP, Port: 80},
					Service: "web", Port: "80/tcp", AffinityTimeout: affinity,
					Policy: balancer.Policy{Scheduler: scheduler, Forward: balancer.NATForward, DrainTimeout: time.Minute},
					Backends: []balancer.Backend{
						{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), State: balancer.Active, Weight: 1},
						{Addr: netip.MustParseAddrPort("10.0.0.2:8080"), State: balancer.Active, Weight: 2},
					},
				}
			}
			for name, f := range Changed(t, base) {
				if rules(f) == rules(base()) {
					continue
				}
				seen++
				if digest(f) == digest(base()) {
					t.Errorf("a change to %s affects the rules of %s with affinity %s, but not the digest; want another digest", name, scheduler, affinity)
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("number of fields that affect the rules = %d, want at least 20", seen)
	}
}
