package conntrack

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/test/lab"
)

// TestSearchesHereWhereTheKernelDoesNot requests searches that the kernel does not support. list
// must then visit all flows, so the package can search them itself.
func TestSearchesHereWhereTheKernelDoesNot(t *testing.T) {
	tab := scratch(t)
	flows := []Flow{
		flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.1:53", "10.2.0.1:53"),
		flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.2:53", "10.2.0.2:53"),
	}
	tab.create(t, whole, flows...)
	for name, s := range map[string]selection{
		"EOPNOTSUPP": {family: unix.AF_INET, flags: 1 << 31},
		"EINVAL":     {family: unix.AF_INET, flags: byPort}, // without a protocol
	} {
		found := 0
		if err := tab.list(t.Context(), s, func(*Flow) error { found++; return nil }); err != nil || found != len(flows) {
			t.Errorf("%s: visited flows = %d, %v; want all %d", name, found, err, len(flows))
		}
		l := listing{ctx: t.Context()}
		if err := l.run(tab.lists, s); err == nil {
			t.Errorf("%s: invalid search: error = nil, want a refusal", name)
		}
	}
}

// TestListsAfterOneThatWasGivenUp ends lists early in several ways. After each of them, the next
// list must be complete.
func TestListsAfterOneThatWasGivenUp(t *testing.T) {
	tab := scratch(t)
	flows := randomFlows(rand.New(rand.NewPCG(1, 1)), 2000) // more flows than the kernel sends in a single message
	tab.create(t, whole, flows...)
	enough := errors.New("enough")
	if err := tab.Each(t.Context(), Filter{}, func(*Flow) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("Each = %v, want the error from visit", err)
	}
	tab.want(t, Filter{}, flows)
	if err := tab.Each(t.Context(), Filter{}, func(*Flow) error { return unix.EINVAL }); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Each = %v, want the error from visit", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	visits := 0
	err := tab.Each(ctx, Filter{}, func(*Flow) error { visits++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || visits == 0 || visits >= len(flows) {
		t.Errorf("visits = %d, error = %v; want at least one visit, and the context's error", visits, err)
	}
	if err := tab.Each(ctx, Filter{}, func(*Flow) error { t.Error("Each visited a flow after ctx was canceled"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Each = %v, want the context's error", err)
	}
	var w sync.WaitGroup
	w.Go(func() {
		defer func() { _ = recover() }()
		_ = tab.Each(t.Context(), Filter{}, func(*Flow) error { panic("a visit that never returns") })
	})
	w.Wait()
	tab.want(t, Filter{}, flows)
}

// TestSeveralGoroutines lists, deletes and cuts flows in several goroutines, and also deletes flows
// in the visit function. All other flows must be found.
func TestSeveralGoroutines(t *testing.T) {
	tab := scratch(t)
	var kept, deleted, cut []Flow
	for _, f := range randomFlows(rand.New(rand.NewPCG(2, 2)), 3000) {
		switch f.Orig.Dst.Port() {
		case 80:
			kept = append(kept, f)
		case 81:
			deleted = append(deleted, f)
		default:
			cut = append(cut, f)
		}
	}
	for _, part := range [][]Flow{kept, deleted, cut} {
		tab.create(t, whole, part...)
	}
	var w sync.WaitGroup
	w.Go(func() {
		for i := range deleted {
			if err := tab.delete(&deleted[i]); err != nil {
				t.Error(err)
			}
		}
	})
	w.Go(func() {
		if err := tab.Each(t.Context(), Filter{Port: 81}, func(f *Flow) error { return tab.delete(f) }); err != nil {
			t.Error(err)
		}
	})
	cuts := 0
	w.Go(func() {
		keys := map[balancer.Key]bool{}
		for i := range cut {
			keys[cut[i].Frontend()] = true
		}
		n, err := tab.Cut(t.Context(), keys, nil)
		if err != nil {
			t.Error(err)
		}
		cuts = n
	})
	for range 5 {
		seen := map[identity]bool{}
		if err := tab.Each(t.Context(), Filter{Port: 80}, func(f *Flow) error { seen[identityOf(f)] = true; return nil }); err != nil {
			t.Fatal(err)
		}
		if len(seen) != len(kept) {
			t.Errorf("flows found on port 80 = %d, want %d", len(seen), len(kept))
		}
	}
	w.Wait()
	if cuts != len(cut) {
		t.Errorf("flows deleted by Cut = %d, want %d", cuts, len(cut))
	}
	tab.want(t, Filter{}, kept)
}

// TestListsInConstantMemory lists tables of several sizes. A list's memory use must not depend on
// the size of the table.
func TestListsInConstantMemory(t *testing.T) {
	tab := scratch(t)
	const n = 5000
	tab.create(t, whole, randomFlows(rand.New(rand.NewPCG(3, 3)), n)...)
	visits := 0
	allocs := testing.AllocsPerRun(1, func() {
		if err := tab.Each(t.Context(), Filter{}, func(*Flow) error { visits++; return nil }); err != nil {
			t.Fatal(err)
		}
	})
	if visits != 2*n || allocs > 50 {
		t.Errorf("visits = %d, allocations = %.0f; want %d and at most 50", visits, allocs, 2*n)
	}
}

func TestClosedConnFails(t *testing.T) {
	lab.New(t)
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f := flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.1:53", "10.2.0.1:53")
	if err := c.delete(&f); err == nil {
		t.Error("after Close: delete = nil, want an error")
	}
	if err := c.Each(t.Context(), Filter{}, func(*Flow) error { return nil }); err == nil {
		t.Error("after Close: Each = nil, want an error")
	}
}
