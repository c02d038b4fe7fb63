package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/fake"
)

// yielding is a dataplane that implements [dataplane.Yields].
type yielding struct{ *fake.Dataplane }

func (yielding) Yield(context.Context) error { return nil }

// TestAs looks for an optional interface in wrapped and unwrapped dataplanes. As must find the
// interface at any depth, and only in dataplanes that implement it.
func TestAs(t *testing.T) {
	inner := yielding{fake.New(fake.NewKernel())}
	for name, c := range map[string]struct {
		dp   dataplane.Dataplane
		want bool
	}{
		"bare":             {inner, true},
		"wrapped":          {blind{inner}, true},
		"wrapped twice":    {&recorder{Dataplane: blind{inner}}, true},
		"without":          {inner.Dataplane, false},
		"wrapping without": {blind{inner.Dataplane}, false},
		"nil":              {nil, false},
	} {
		if got, ok := dataplane.As[dataplane.Yields](c.dp); ok != c.want || ok && got != dataplane.Yields(inner) {
			t.Errorf("%s: As = %v, %t; want %t", name, got, ok, c.want)
		}
	}
}

// TestKeyErrors formats and unwraps an error that contains the errors of several keys. The errors
// must be in the order of their keys.
func TestKeyErrors(t *testing.T) {
	errs := dataplane.KeyErrors{}
	var want string
	for i := range 20 {
		k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 80, Proto: balancer.TCP}
		errs[k] = fmt.Errorf("no %d", i)
		if i > 0 {
			want += "; "
		}
		want += fmt.Sprintf("10.0.0.%d:80/tcp: no %d", i, i)
	}
	if got := errs.Error(); got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	last := balancer.Key{Addr: netip.MustParseAddr("10.0.0.20"), Port: 80, Proto: balancer.TCP}
	errs[last] = fmt.Errorf("writing: %w", context.Canceled)
	if !errors.Is(errs.Err(), context.Canceled) {
		t.Error("errors.Is(err, context.Canceled) = false, want true")
	}
	if all := errs.Unwrap(); len(all) != 21 || all[0].Error() != "no 0" {
		t.Errorf("Unwrap() = %v, want 21 errors in the order of their keys", all)
	}
}
