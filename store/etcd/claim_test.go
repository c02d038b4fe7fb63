package etcd_test

import (
	"errors"
	"fmt"
	"testing"

	"vipd/balancer"
	"vipd/store/etcd/definitions"
	"vipd/test/etcdkit"
)

// TestClaims writes services with few and with many claims. A writer's own claims must not make its
// next changes stale. After another writer has added claims, the writer's changes must be stale
// until it has read everything again. Claims that an earlier version of vipd has written, each in
// its own key, must have the same effect.
func TestClaims(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	w, other := newWriter(t, p.config), newWriter(t, p.config)
	at := func(n, ports int) definitions.Change {
		var all []any
		for i := range ports {
			all = append(all, map[string]any{"name": fmt.Sprintf("p%d", i), "port": int64(1000 + i)})
		}
		fields := map[string]any{"vips": []any{fmt.Sprintf("10.97.0.%d", n)}, "ports": all}
		return definitions.Change{Name: balancer.Name(fmt.Sprintf("s%d", n)), Fields: fields}
	}
	look := apply(t, w, at(1, 1)).Revision
	checked := func(c definitions.Change) definitions.Change { c.Checked = &look; return c }
	for n, ports := range []int{60, 1, 60, 60, 2, 1, 60} {
		apply(t, w, checked(at(10+n, ports)))
	}
	apply(t, other, at(30, 1))
	var stale *definitions.StaleError
	if r, err := w.Apply(t.Context(), checked(at(31, 60))); !errors.As(err, &stale) {
		t.Errorf("Apply after another writer's claims = %+v, %v, want a StaleError", r, err)
	}
	look = apply(t, w, at(32, 60)).Revision
	apply(t, w, checked(at(33, 60)))
	apply(t, other, at(34, 60))
	if r, err := w.Apply(t.Context(), checked(at(35, 1))); !errors.As(err, &stale) {
		t.Errorf("Apply after another writer's many claims = %+v, %v, want a StaleError", r, err)
	}
	look = apply(t, w, at(36, 1)).Revision
	apply(t, w, checked(at(37, 1)))
	p.put("/claims/7ff", "s38")
	if r, err := w.Apply(t.Context(), checked(at(39, 1))); !errors.As(err, &stale) {
		t.Errorf("Apply after an earlier version's claims = %+v, %v, want a StaleError", r, err)
	}
	same := checked(at(1, 1))
	same.Base, same.Fields["scheduler"] = definitions.Any, "lc" // a change without a new claim is not stale
	apply(t, w, same)
}
