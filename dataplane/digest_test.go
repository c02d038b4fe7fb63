package dataplane_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// TestDigestEveryField changes each field of a frontend and its backend. The digest and Equal must
// differ.
func TestDigestEveryField(t *testing.T) {
	base := func() *balancer.Frontend {
		return &balancer.Frontend{Backends: []balancer.Backend{{State: balancer.Active, Weight: 1}}}
	}
	want := dataplane.DigestOf(base())
	check := func(name string, f *balancer.Frontend) {
		t.Helper()
		if dataplane.DigestOf(f) == want {
			t.Errorf("%s does not change the digest", name)
		}
		if f.Equal(base()) {
			t.Errorf("Equal ignores %s", name)
		}
	}
	for i := range reflect.TypeFor[balancer.Frontend]().NumField() {
		f := base()
		field := reflect.ValueOf(f).Elem().Field(i)
		if field.Type() == reflect.TypeFor[balancer.Policy]() {
			continue
		}
		alter(t, field)
		check(reflect.TypeFor[balancer.Frontend]().Field(i).Name, f)
	}
	for i := range reflect.TypeFor[balancer.Policy]().NumField() {
		f := base()
		alter(t, reflect.ValueOf(&f.Policy).Elem().Field(i))
		check("Policy."+reflect.TypeFor[balancer.Policy]().Field(i).Name, f)
	}
	for i := range reflect.TypeFor[balancer.Backend]().NumField() {
		if reflect.TypeFor[balancer.Backend]().Field(i).Name == "Failing" { // only the guard honours it
			continue
		}
		f := base()
		alter(t, reflect.ValueOf(&f.Backends[0]).Elem().Field(i))
		check("Backend."+reflect.TypeFor[balancer.Backend]().Field(i).Name, f)
	}
	for _, k := range []balancer.Key{{Port: 1}, {Proto: balancer.UDP}, {Addr: netip.MustParseAddr("::")}} {
		f := base()
		f.Key = k
		check("key "+k.String(), f)
	}
	// Adjacent fields must not run into each other.
	a, b := base(), base()
	a.Port, a.Service = "ab", "c"
	b.Port, b.Service = "b", "ca"
	if dataplane.DigestOf(a) == dataplane.DigestOf(b) {
		t.Error("two different frontends have one digest")
	}
}

// alter gives v a value other than its zero value.
func alter(t *testing.T, v reflect.Value) {
	t.Helper()
	values := []any{
		balancer.Key{Port: 1}, true, balancer.Name("x"), "x", 7, time.Hour, netip.MustParseAddrPort("[fe80::1%eth0]:1"),
		[]balancer.Backend{}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, time.Unix(1, 0),
		balancer.Maglev, balancer.NeverSNAT, balancer.DRForward, balancer.DropClients, balancer.ProxyProtocolV1, balancer.Standby,
	}
	i := slices.IndexFunc(values, func(x any) bool { return reflect.TypeOf(x) == v.Type() })
	if i < 0 {
		t.Fatalf("add a value of type %s to this test", v.Type())
	}
	v.Set(reflect.ValueOf(values[i]))
}
