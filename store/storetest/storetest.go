package storetest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/test/wait"
)

// Factory creates an empty place for a test.
type Factory func(t *testing.T) Place

// Place is a place that a source reads, such as a directory. Its other methods change the
// definitions in it, as users would. If a method fails, it fails the test.
type Place interface {
	// Source returns a source that reads the place. The suite calls Source once for each place.
	Source() store.Source
	// Write adds or replaces the definition of a service. The map fields holds the content of a
	// [services.NAME] table. Its values may be invalid, but TOML and JSON can represent them: they
	// are of the types string, bool, int64, []any and map[string]any.
	Write(name balancer.Name, fields map[string]any)
	// Delete removes the definition of a service.
	Delete(name balancer.Name)
	// Paused reports whether a write took so long that a source may have read partial data, from
	// which some definitions were missing.
	Paused() bool
}

// Run checks that the sources of the places that f creates fulfill the contract of store.Source.
func Run(t *testing.T, f Factory) {
	t.Run("empty", func(t *testing.T) { testEmpty(t, f(t)) })
	t.Run("first", func(t *testing.T) { testFirst(t, f(t)) })
	t.Run("changes", func(t *testing.T) { testChanges(t, f(t)) })
	t.Run("burst", func(t *testing.T) { testBurst(t, f(t)) })
	t.Run("identity", func(t *testing.T) { testIdentity(t, f(t)) })
	t.Run("bad definition", func(t *testing.T) { testBad(t, f(t)) })
	t.Run("reload", func(t *testing.T) { testReload(t, f(t)) })
	t.Run("end", func(t *testing.T) { testEnd(t, f(t)) })
	t.Run("histories", func(t *testing.T) { testHistories(t, f) })
}

// within is the time limit for all reactions of a source, even on a busy machine.
const within = 20 * time.Second

// definition returns the fields of a service. Different values of n result in different services.
func definition(n int) map[string]any {
	return map[string]any{
		"vips":      []any{fmt.Sprintf("10.%d.%d.%d", 96+n>>16, n>>8&255, n&255), fmt.Sprintf("fd00:96::%x", n+1)},
		"ports":     []any{map[string]any{"port": int64(80), "target_port": int64(1000 + n)}},
		"endpoints": []any{map[string]any{"address": "192.168.1.11", "weight": int64(2)}, map[string]any{"address": "fd00::11", "zone": "z1"}},
		"scheduler": "lc",
		"health":    map[string]any{"type": "http", "path": "/healthz", "headers": map[string]any{"X-From.Where": "vipd"}},
	}
}

// wrong returns the fields of a service with an error in one field, and the name of that field.
func wrong(n int) (fields map[string]any, field string) {
	fields = definition(n)
	fields["scheduler"] = "fastest"
	return fields, "scheduler"
}

// service returns the service with the given fields, with an empty Origin.
func service(t testing.TB, name balancer.Name, fields map[string]any) *balancer.Service {
	t.Helper()
	s, problems := balancer.DecodeService(name, fields, nil, nil, balancer.SeverityError)
	if s == nil {
		t.Fatalf("problems of a valid definition = %v, want none", problems)
	}
	return s
}

// equalServices reports whether got equals want, except for Origin.
func equalServices(got, want *balancer.Service) bool {
	if got == nil || want == nil {
		return got == want
	}
	moved := *got
	moved.Origin = want.Origin
	return reflect.DeepEqual(&moved, want)
}

func testEmpty(t *testing.T, p Place) {
	r := watch(t, p.Source())
	first := r.wait("the first snapshot", func(store.Snapshot) bool { return true })
	if first.Services.Len() != 0 || !first.Connected || first.Err != nil || len(first.Problems) != 0 {
		t.Errorf("first snapshot of an empty place: %d services, connected = %t, error = %v, problems = %v, want no services and connected",
			first.Services.Len(), first.Connected, first.Err, first.Problems)
	}
}

func testFirst(t *testing.T, p Place) {
	const n = 50
	for i := range n {
		p.Write(name(i), definition(i))
	}
	r := watch(t, p.Source())
	r.wait("the first snapshot", func(store.Snapshot) bool { return true })
	first := r.all()[0]
	if first.Services.Len() != n || !first.Connected || first.Err != nil || len(first.Problems) != 0 || first.Revision < 1 {
		t.Fatalf("first snapshot: %d services, connected = %t, error = %v, problems = %v, revision %d; want all %d services",
			first.Services.Len(), first.Connected, first.Err, first.Problems, first.Revision, n)
	}
	for i := range n {
		if got, want := first.Services.At(name(i)), service(t, name(i), definition(i)); !equalServices(got, want) {
			t.Errorf("service %s:\n got %+v\nwant %+v", name(i), got, want)
		} else if got.Origin.File == "" && got.Origin.Key == "" {
			t.Errorf("Origin of service %s has neither a file nor a key, want one of them", name(i))
		}
	}
}

func name(i int) balancer.Name { return balancer.Name(fmt.Sprintf("s%d", i)) }

func testChanges(t *testing.T, p Place) {
	r := watch(t, p.Source())
	r.wait("the first snapshot", func(store.Snapshot) bool { return true })
	has := func(n int) func(store.Snapshot) bool {
		want := service(t, "web", definition(n))
		return func(s store.Snapshot) bool { return equalServices(s.Services.At("web"), want) }
	}
	p.Write("web", definition(1))
	r.wait("a new service", has(1))
	p.Write("web", definition(2))
	r.wait("its change", has(2))
	p.Write("dns", definition(3))
	r.wait("another service", func(s store.Snapshot) bool { return s.Services.Has("dns") && has(2)(s) })
	p.Delete("web")
	r.wait("its removal", func(s store.Snapshot) bool { return !s.Services.Has("web") && s.Services.Has("dns") })
	p.Write("web", definition(1))
	r.wait("its return", has(1))
	p.Delete("dns")
	p.Delete("web")
	r.wait("the removal of all", func(s store.Snapshot) bool { return s.Services.Len() == 0 })
}

// testBurst makes many changes while a call to publish is blocked. Afterwards, the source must
// publish most of these changes together.
func testBurst(t *testing.T, p Place) {
	const n = 100
	r := watch(t, p.Source())
	r.wait("the first snapshot", func(store.Snapshot) bool { return true })
	release := r.blockPublish()
	p.Write(name(0), definition(0))
	wait.For(t, within, "the first change to be published", r.held)
	for i := range n {
		p.Write(name(i), definition(i))
	}
	release()
	r.wait("all of the burst", func(s store.Snapshot) bool { return s.Services.Len() == n })
	if got := len(r.all()); got > n/10 {
		t.Errorf("snapshots after %d changes = %d, want at most %d", n, got, n/10)
	}
}

func testIdentity(t *testing.T, p Place) {
	for i := range 10 {
		p.Write(name(i), definition(i))
	}
	r := watch(t, p.Source())
	before := r.wait("the first snapshot", func(store.Snapshot) bool { return true })
	for n := 30; ; n++ {
		p.Write(name(3), definition(n))
		want := service(t, name(3), definition(n))
		after := r.wait("the change", func(s store.Snapshot) bool { return equalServices(s.Services.At(name(3)), want) })
		var wrong []int
		for i := range 10 {
			if same := before.Services.At(name(i)) == after.Services.At(name(i)); same == (i == 3) {
				wrong = append(wrong, i)
			}
		}
		if len(wrong) == 0 {
			return
		}
		if !p.Paused() || n == 40 { // if a write paused, services that were missing from a partial file may have been removed and added again
			t.Errorf("after a change of service 3 of 10, the pointers of %v are wrong, want only the pointer of service 3 changed", wrong)
			return
		}
		before = after
	}
}

func testBad(t *testing.T, p Place) {
	p.Write("web", definition(1))
	r := watch(t, p.Source())
	before := r.wait("the first snapshot", func(store.Snapshot) bool { return true })
	bad, field := wrong(2)
	problems := func(s store.Snapshot) map[balancer.Name]string {
		found := map[balancer.Name]string{}
		for _, p := range s.Problems {
			if p.Severity == balancer.SeverityError && (p.Origin.File != "" || p.Origin.Key != "") && p.Text != "" {
				found[p.Service] = p.Field
			}
		}
		return found
	}
	p.Write("web", bad)
	p.Write("new", bad)
	p.Write("dns", definition(3))
	after := r.wait("problems of web and new, and the service dns", func(s store.Snapshot) bool {
		return maps.Equal(problems(s), map[balancer.Name]string{"web": field, "new": field}) && s.Services.Has("dns")
	})
	if after.Services.At("web") != before.Services.At("web") {
		t.Errorf("web after its definition broke = %+v, want it unchanged", after.Services.At("web"))
	}
	if after.Services.Has("new") {
		t.Errorf("new = %+v, want it missing because it was never valid", after.Services.At("new"))
	}
	p.Write("web", definition(1))
	r.wait("web as it was", func(s store.Snapshot) bool { return maps.Equal(problems(s), map[balancer.Name]string{"new": field}) })
	p.Write("web", definition(4))
	p.Delete("new")
	want := service(t, "web", definition(4))
	r.wait("the fixed definition, without problems", func(s store.Snapshot) bool {
		return len(s.Problems) == 0 && equalServices(s.Services.At("web"), want)
	})
}

func testReload(t *testing.T, p Place) {
	source := p.Source()
	reloader, ok := source.(interface {
		Reload(context.Context) ([]balancer.Problem, error)
	})
	if !ok {
		t.Skipf("%T does not implement Reload", source)
	}
	r := watch(t, source)
	bad, field := wrong(2)
	p.Write("web", definition(1))
	p.Write("dns", bad)
	problems, err := reloader.Reload(t.Context())
	if err != nil || len(problems) != 1 || problems[0].Service != "dns" || problems[0].Field != field {
		t.Errorf("Reload = %v, %v; want the problem of dns", problems, err)
	}
	all := r.all()
	if len(all) == 0 || !all[len(all)-1].Services.Has("web") {
		t.Error("Reload returned before its result was published, want it published first")
	}
	again, err := reloader.Reload(t.Context())
	if err != nil || !reflect.DeepEqual(problems, again) {
		t.Errorf("repeated Reload = %v, %v; want the same problems", again, err)
	}
	if now := r.all(); len(now) != len(all) {
		t.Errorf("snapshots of Reload without a change = %d, want 0", len(now)-len(all))
	}
}
