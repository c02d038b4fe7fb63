package watch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// bench is a state whose keys and clock the test provides.
type bench struct {
	state
	reader   reader
	now      time.Time
	revision int64
}

func newBench() *bench {
	keys, _ := schema.NewKeys("/p")
	return &bench{state: state{keys: keys}, reader: reader{keys: keys}, now: time.Unix(1_800_000_000, 0), revision: 1}
}

// set writes a key. If lease is not 0, the key is attached to this lease.
func (b *bench) set(key, text string, lease int64) {
	b.Revision++
	key = "/p/" + key
	created := b.Revision
	if old := b.records.At(rawKey(key)); old != nil {
		created = old.now.created
	}
	r := b.reader.record(&mvccpb.KeyValue{
		Key: []byte(key), Value: []byte(text), CreateRevision: created, ModRevision: b.Revision, Lease: lease,
	}, b.records.At(rawKey(key)))
	b.put(r, b.now)
	b.settle("web", b.now)
}

func (b *bench) unset(key string) {
	b.remove(rawKey("/p/"+key), b.now)
	b.settle("web", b.now)
}

// after advances the time by d.
func (b *bench) after(d time.Duration) {
	b.now = b.now.Add(d)
	b.settle("web", b.now)
}

// ids returns the IDs of the endpoints in use, without separators.
func (b *bench) ids() string {
	var ids []string
	for id := range b.Endpoints.Keys() {
		ids = append(ids, id.ID)
	}
	return strings.Join(ids, "")
}

func (b *bench) expect(t *testing.T, when, want string, warned bool) {
	t.Helper()
	if got := b.ids(); got != want {
		t.Errorf("%s: endpoints in use = %q, want %q", when, got, want)
	}
	if got := len(b.problems()) > 0; got != warned {
		t.Errorf("%s: problems = %v, want a warning if endpoints without a lease stay in use, and otherwise none", when, b.problems())
	}
}

const plainService = `{"vips":["10.96.0.10"],"ports":[{"port":80}]}`

func endpoint(n int) string { return fmt.Sprintf(`{"address":"10.0.%d.%d"}`, n>>8, n&255) }

// departures returns a state with the service "web" and its endpoints a, b and c. Each endpoint has
// its own lease.
func departures() *bench {
	b := newBench()
	b.set("services/web", plainService, 0)
	for i, id := range []string{"a", "b", "c"} {
		b.set("endpoints/web/"+id, endpoint(i), int64(i+1))
	}
	return b
}

func TestDeparture(t *testing.T) {
	vanish := func(b *bench, ids ...string) {
		for _, id := range ids {
			b.unset("endpoints/web/" + id)
			b.after(3 * time.Second)
		}
	}
	for name, run := range map[string]func(*testing.T, *bench){
		"some are gone": func(t *testing.T, b *bench) {
			vanish(b, "a", "b")
			b.expect(t, "two gone", "c", false)
		},
		"all within the time": func(t *testing.T, b *bench) {
			vanish(b, "a", "b", "c")
			b.expect(t, "all gone", "abc", true)
			b.after(24 * time.Hour)
			b.expect(t, "a day later", "abc", true)
		},
		"the only one": func(t *testing.T, b *bench) {
			vanish(b, "a", "b")
			b.after(together)
			vanish(b, "c")
			b.expect(t, "all gone", "c", true)
			if got := fmt.Sprint(b.problems()); !strings.Contains(got, "the lease of its last endpoint has ended: it stays in use until an endpoint is registered again") {
				t.Errorf("problems = %s, want one about the last endpoint, which stays in use", got)
			}
		},
		"the first long before": func(t *testing.T, b *bench) {
			vanish(b, "a")
			b.after(together)
			vanish(b, "b", "c")
			b.expect(t, "all gone", "bc", true)
		},
		"one comes back": func(t *testing.T, b *bench) {
			vanish(b, "a", "b", "c")
			b.set("endpoints/web/b", endpoint(9), 9)
			b.expect(t, "at once", "abc", true)
			b.after(comeback - time.Second)
			b.expect(t, "before the others' time is over", "abc", true)
			b.after(time.Second)
			b.expect(t, "after", "b", false)
		},
		"one comes back and goes again": func(t *testing.T, b *bench) {
			vanish(b, "a", "b", "c")
			b.set("endpoints/web/b", endpoint(9), 9)
			b.after(comeback / 2)
			vanish(b, "b")
			b.after(comeback)
			b.expect(t, "after the time that was running", "abc", true)
		},
		"left on purpose": func(t *testing.T, b *bench) {
			b.set("endpoints/web/a", `{"address":"10.0.0.1","draining":true}`, 1)
			b.set("endpoints/web/b", `{"address":"10.0.0.1","weight":0}`, 2)
			b.set("endpoints/web/c", `{"address":"10.0.0.1"}`, 0)
			vanish(b, "a", "b", "c")
			b.expect(t, "all gone", "", false)
		},
		"the service has endpoints of its own": func(t *testing.T, b *bench) {
			b.set("services/web", strings.Replace(plainService, "{", `{"endpoints":[{"address":"10.1.1.1"}],`, 1), 0)
			vanish(b, "a", "b", "c")
			b.expect(t, "all gone", "", false)
		},
		"the service gets endpoints of its own": func(t *testing.T, b *bench) {
			vanish(b, "a", "b", "c")
			b.set("services/web", strings.Replace(plainService, "{", `{"endpoints":[{"address":"10.1.1.1"}],`, 1), 0)
			b.expect(t, "then", "", false)
		},
		"the service goes": func(t *testing.T, b *bench) {
			vanish(b, "a", "b", "c")
			b.unset("services/web")
			b.expect(t, "then", "", false)
			b.set("services/web", plainService, 0)
			b.expect(t, "and comes again", "", false)
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, departures()) })
	}
}

// TestDepartureHistories makes endpoints vanish and return at random. A state that checks vanished
// endpoints only when the result may have changed must equal a state that checks them at each step.
func TestDepartureHistories(t *testing.T) {
	const own = `{"endpoints":[{"address":"10.1.1.1"}],`
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		b, each := newBench(), newBench()
		for step := range 60 {
			id, n, wait := fmt.Sprintf("endpoints/web/%d", random.IntN(4)), random.IntN(12), time.Duration(random.Int64N(int64(together)))
			answer := client.LeaseAnswer(random.IntN(int(client.LeaseEnded) + 1))
			for _, s := range []*bench{b, each} {
				if a, ok := s.absences.Get("web"); ok && s == each {
					a.due = s.now
					s.absences = s.absences.Set("web", a)
				}
				switch n {
				case 0:
					s.set("services/web", plainService, 0)
				case 1:
					s.set("services/web", strings.Replace(plainService, "{", own, 1), 0)
				case 2:
					s.unset("services/web")
				case 3, 4, 5:
					s.set(id, endpoint(step), int64(step+1))
				case 6, 7, 8, 9:
					s.unset(id)
				case 10:
					s.after(wait)
				case 11:
					for _, news := range s.ask() {
						news.LeaseAnswer = answer
						s.answer(news)
					}
					s.settle("web", s.now)
				}
			}
			if got, want := b.ids()+fmt.Sprint(b.problems()), each.ids()+fmt.Sprint(each.problems()); got != want {
				t.Fatalf("seed %d, step %d (%d): state = %s, want %s", seed, step, n, got, want)
			}
		}
	}
}

// TestDepartureWork makes many endpoints of a service vanish and return. The cost of each endpoint
// must not depend on the number of endpoints. A check copies endpoints, so the number of
// allocations is a measure of the cost.
func TestDepartureWork(t *testing.T) {
	each := func(n int) float64 {
		ids := slices.Collect(names("endpoints/web/%05d", n))
		return testing.AllocsPerRun(1, func() {
			b := newBench()
			b.set("services/web", plainService, 0)
			for i, id := range ids {
				b.set(id, endpoint(i), int64(i+1))
			}
			for _, id := range ids {
				b.unset(id)
			}
			if b.Endpoints.Len() != n || len(b.problems()) != 1 {
				t.Fatalf("after all endpoints vanished: endpoints in use = %d, problems = %v, want %d endpoints and one problem", b.Endpoints.Len(), b.problems(), n)
			}
			for range n { // processes as many answers about leases as possible
				for _, news := range b.ask() {
					news.LeaseAnswer = client.LeaseEnded
					b.answer(news)
				}
				b.settle("web", b.now)
			}
			for i, id := range ids {
				b.set(id, endpoint(i), int64(n+i+1))
			}
			if b.departed.Len() != 0 || b.unsure.Len() != 0 || b.absences.At("web").kept != 0 || len(b.problems()) != 0 {
				t.Fatalf("after all %d endpoints returned: endpoints that count as vanished = %d, want 0 and no problem", n, b.departed.Len())
			}
		}) / float64(n)
	}
	few, many := each(200), each(1600)
	t.Logf("%.0f allocations for each of 200 endpoints, %.0f for each of 1600", few, many)
	if many > 2*few {
		t.Errorf("allocations per endpoint = %.0f with 1600 endpoints, %.0f with 200, want at most twice as many", many, few)
	}
}

// TestDepartureClockJump sets the host's clock forward or back by an hour. The jump must not change
// how long ago an endpoint vanished, or how long vanished endpoints are kept after another endpoint
// has returned.
func TestDepartureClockJump(t *testing.T) {
	for _, hours := range []int64{1, -1, 0} {
		b := departures()
		b.now = time.Now()
		jump := func() { b.now = jumped(b.now, hours*3600) }
		b.unset("endpoints/web/a")
		jump()
		b.after(together - time.Second)
		b.unset("endpoints/web/b")
		b.unset("endpoints/web/c")
		b.expect(t, "all gone", "abc", true)
		jump()
		b.set("endpoints/web/b", endpoint(9), 9)
		jump()
		b.after(comeback - time.Second)
		b.expect(t, "before the others' time is over", "abc", true)
		jump()
		b.after(time.Second)
		b.expect(t, "after", "b", false)
	}
	now := time.Now()
	if j := jumped(now, 3600); j.Sub(now) != 0 || j.Round(0).Sub(now.Round(0)) != time.Hour {
		t.Errorf("jumped changes the wall time by %s and the monotonic time by %s, want 1h and 0s", j.Round(0).Sub(now.Round(0)), j.Sub(now))
	}
}

// TestLimit adds more endpoints to a service than the maximum. The oldest endpoints must be used,
// whatever the order of their keys is.
func TestLimit(t *testing.T) {
	b := newBench()
	b.set("services/web", plainService, 0)
	for i := range schema.MaxEndpoints {
		b.set(fmt.Sprintf("endpoints/web/z%05d", i), endpoint(i), 0)
	}
	b.expect(t, "as many as may be", strings.Join(slices.Collect(names("z%05d", schema.MaxEndpoints)), ""), false)
	b.set("endpoints/web/a1", endpoint(1), 0)
	b.set("endpoints/web/a2", endpoint(1), 0)
	if b.Endpoints.Len() != schema.MaxEndpoints || b.Endpoints.Has(balancer.EndpointID{Service: "web", ID: "a1"}) || len(b.problems()) != 1 {
		t.Errorf("endpoints in use = %d, problems = %v, want the maximum without a1, and one problem", b.Endpoints.Len(), b.problems())
	}
	before := maps.Collect(b.Endpoints.All())
	b.unset("endpoints/web/a1")
	b.set("endpoints/web/a1", endpoint(2), 0)
	if !maps.Equal(before, maps.Collect(b.Endpoints.All())) {
		t.Error("the endpoints in use changed after an unused endpoint was replaced")
	}
	b.unset("endpoints/web/z00000")
	if !b.Endpoints.Has(balancer.EndpointID{Service: "web", ID: "a2"}) || b.Endpoints.Has(balancer.EndpointID{Service: "web", ID: "a1"}) {
		t.Error("after an endpoint was removed: want a2 in use, which is older than a1, and not a1")
	}
	b.unset("endpoints/web/a1")
	if len(b.problems()) != 0 || b.Endpoints.Len() != schema.MaxEndpoints {
		t.Errorf("endpoints in use = %d, problems = %v, want the maximum and no problem", b.Endpoints.Len(), b.problems())
	}
}

func names(format string, n int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for i := range n {
			if !yield(fmt.Sprintf(format, i)) {
				return
			}
		}
	}
}

// TestProblemsAreBounded writes many keys with invalid values. At most the maximum number of
// problems may be reported, and a summary of all of them.
func TestProblemsAreBounded(t *testing.T) {
	b := newBench()
	for i := range 3 * maxProblems {
		b.set(fmt.Sprintf("services/x%d", i), "?", 0)
	}
	problems := b.problems()
	if last := problems[len(problems)-1]; len(problems) != maxProblems+1 || !strings.Contains(last.Text, "3000 keys have problems") {
		t.Errorf("problems = %d, the last = %v, want the maximum number and a final summary", len(problems), last)
	}
}

// jumped returns t with its wall time changed by the given seconds, but with the same monotonic
// time, as after a step of the clock.
func jumped(t time.Time, seconds int64) time.Time {
	// If a time has a monotonic reading, the lowest 30 bits of its wall field are nanoseconds. The
	// bits above them are seconds (see time.Time in Go's time.go).
	type layout struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).wall += uint64(seconds) << 30
	return t
}
