package resolve_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane/resolve"
)

// TestMain checks that no goroutine outlives the tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script answers lookups at the times that the test expects.
type script struct {
	mu    sync.Mutex
	asked map[string][]time.Duration // since the start
	start time.Time
	next  resolve.Answer
}

func (s *script) answer(_ context.Context, l balancer.Lookup, last []balancer.Member) resolve.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[l.Name] = append(s.asked[l.Name], time.Since(s.start))
	a := s.next
	if a.Failure != "" {
		a.Members = last
	}
	return a
}

func (s *script) set(failure string, ttl time.Duration, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = resolve.Answer{Resolution: balancer.Resolution{Members: members(addresses...), Failure: failure}, TTL: ttl}
}

// times returns when a name was looked up since the last call.
func (s *script) times(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.asked, name)
	return fmt.Sprint(s.asked[name])
}

// TestSchedule changes the TTL and the outcome of a lookup. It must be repeated by TTL, at least
// once an interval, and after failures with growing pauses.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{asked: map[string][]time.Duration{}, start: time.Now()}
		var changes atomic.Int32
		r := resolve.NewRunner(resolve.RunnerOptions{Answer: s.answer, Changed: func() { changes.Add(1) }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		ttl, discovery := hostOf("ttl"), hostOf("interval")
		state := func(want string, wantChanges int32) {
			t.Helper()
			synctest.Wait()
			a := r.Answers().At(ttl)
			if got := fmt.Sprint(text(resolve.Answer{Resolution: *a})); got != want || changes.Load() != wantChanges {
				t.Errorf("after %s: %s and %d changes, want %s and %d", time.Since(s.start), got, changes.Load(), want, wantChanges)
			}
		}
		asked := func(name, want string) {
			t.Helper()
			if got := s.times(name); got != want {
				t.Errorf("%s was looked up at %s, want %s", name, got, want)
			}
		}
		s.set("", 20*time.Second, "192.0.2.1")
		r.Set(resolve.Demand{Lookups: map[balancer.Lookup]time.Duration{ttl: 0, discovery: 10 * time.Second}})
		time.Sleep(41 * time.Second)
		state("192.0.2.1 for 0s", 2) // an equal answer changes nothing
		asked("ttl", "[0s 20s 40s]")
		asked("interval", "[0s 10s 20s 30s 40s]")

		s.set("SERVFAIL", 0)
		time.Sleep(90 * time.Second)
		state("192.0.2.1 ! SERVFAIL", 4)
		asked("ttl", "[1m0s 1m1s 1m3s 1m7s 1m15s 1m31s 2m1s]")
		s.times("interval")

		s.set("", 0, "192.0.2.2") // a TTL of 0 counts as a second
		time.Sleep(21 * time.Second)
		state("192.0.2.2 for 0s", 6)
		asked("ttl", "[2m31s 2m32s]")
		s.times("interval")

		s.set("", 30*24*time.Hour, "192.0.2.2")
		time.Sleep(2 * time.Hour)
		asked("ttl", "[2m33s 1h2m33s]")

		r.Set(resolve.Demand{Lookups: map[balancer.Lookup]time.Duration{discovery: 5 * time.Second}})
		s.times("interval")
		time.Sleep(11 * time.Second)
		if r.Answers().Has(ttl) {
			t.Error("the answer of a lookup that nobody needs is not forgotten")
		}
		at := time.Since(s.start) - 11*time.Second
		asked("interval", fmt.Sprintf("[%s %s %s]", at, at+5*time.Second, at+10*time.Second))
		asked("ttl", "[]")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestKeptAnswers starts with the answers of an earlier run while every lookup fails. They must
// stay.
func TestKeptAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{asked: map[string][]time.Duration{}, start: time.Now()}
		s.set("SERVFAIL", 0)
		var kept snap.Map[balancer.Lookup, *balancer.Resolution]
		kept = kept.Set(hostOf("db"), &balancer.Resolution{Members: members("192.0.2.1")}).Set(hostOf("gone"), &balancer.Resolution{Members: members("192.0.2.2")})
		r := resolve.NewRunner(resolve.RunnerOptions{Answer: s.answer, Changed: func() {}, Kept: kept})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		r.Set(resolve.Demand{Lookups: map[balancer.Lookup]time.Duration{hostOf("db"): 0}})
		synctest.Wait()
		a := r.Answers()
		if got, want := text(resolve.Answer{Resolution: *a.At(hostOf("db"))}), "192.0.2.1 ! SERVFAIL"; got != want || a.Len() != 1 {
			t.Errorf("%d answers, and %s, want one, %s", a.Len(), got, want)
		}
		cancel()
		<-ended
	})
}

// TestFirstState changes lookups while DNS fails. New lookups must start with the known members in
// their families.
func TestFirstState(t *testing.T) {
	host := func(name string, v4, v6 bool) balancer.Lookup {
		return balancer.Lookup{Kind: balancer.HostLookup, Name: name, V4: v4, V6: v6}
	}
	program := balancer.Lookup{Kind: balancer.ProgramLookup, Name: "/etc/members"}
	both := members("192.0.2.1", "2001:db8::1")
	for name, c := range map[string]struct {
		known      balancer.Lookup
		incomplete bool
		next       balancer.Lookup
		former     balancer.Lookup
		want       string
	}{
		"more families":           {known: host("db", true, false), next: host("db", true, true), want: "192.0.2.1 2001:db8::1"},
		"fewer families":          {known: host("db", true, true), next: host("db", false, true), want: "2001:db8::1"},
		"another name":            {known: host("db", true, false), next: host("web", true, true), want: ""},
		"another kind":            {known: host("db", true, false), next: balancer.Lookup{Kind: balancer.ServiceLookup, Name: "db", V4: true}, want: ""},
		"a replacement":           {known: host("old", true, true), next: host("new", true, false), former: host("old", true, true), want: "192.0.2.1"},
		"a program instead":       {known: host("old", true, true), next: program, former: host("old", true, true), want: "192.0.2.1 2001:db8::1"},
		"not wanted for a moment": {known: host("db", true, true), incomplete: true, next: host("db", true, true), want: "192.0.2.1 2001:db8::1"},
		"not wanted":              {known: host("db", true, true), next: host("db", true, true), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			var kept snap.Map[balancer.Lookup, *balancer.Resolution]
			r := resolve.NewRunner(resolve.RunnerOptions{Kept: kept.Set(c.known, &balancer.Resolution{Members: both})})
			if c.known == c.next {
				r.Set(resolve.Demand{Incomplete: c.incomplete})
			}
			r.Set(resolve.Demand{
				Lookups: map[balancer.Lookup]time.Duration{c.next: 0},
				Former:  map[balancer.Lookup]balancer.Lookup{c.next: c.former},
			})
			var words []string
			for _, m := range r.Answers().At(c.next).Members {
				words = append(words, m.Addr.String())
			}
			if got := strings.Join(words, " "); got != c.want || r.Answers().Len() != 1 {
				t.Errorf("%d answers, and the new lookup starts with %q, want one answer and %q", r.Answers().Len(), got, c.want)
			}
		})
	}
}

// TestAddedAgain removes a lookup and adds it again at the same moment. It must be made again at
// once.
func TestAddedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{asked: map[string][]time.Duration{}, start: time.Now()}
		s.set("", time.Hour, "192.0.2.1")
		r := resolve.NewRunner(resolve.RunnerOptions{Answer: s.answer, Changed: func() {}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		for range 20 {
			r.Set(resolve.Demand{})
			r.Set(resolve.Demand{Lookups: map[balancer.Lookup]time.Duration{hostOf("db"): 0}})
			synctest.Wait()
			if got, want := text(resolve.Answer{Resolution: *r.Answers().At(hostOf("db"))}), "192.0.2.1 for 0s"; got != want {
				t.Errorf("the lookup that was added again has %s, want %s", got, want)
			}
		}
		cancel()
		<-ended
	})
}

// TestManyNames looks many names up, and then none. No goroutine may remain.
func TestManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{asked: map[string][]time.Duration{}, start: time.Now()}
		s.set("", time.Minute, "192.0.2.1")
		r := resolve.NewRunner(resolve.RunnerOptions{Answer: s.answer, Changed: func() {}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		many := map[balancer.Lookup]time.Duration{}
		for i := range 10_000 {
			many[hostOf("db"+strconv.Itoa(i))] = 0
		}
		for range 3 {
			r.Set(resolve.Demand{Lookups: many})
			synctest.Wait()
			if got := r.Answers().Len(); got != len(many) {
				t.Errorf("%d answers, want %d", got, len(many))
			}
			r.Set(resolve.Demand{})
			synctest.Wait()
			if got := r.Answers().Len(); got != 0 {
				t.Errorf("%d answers after the end, want none", got)
			}
		}
		cancel()
		<-ended
	})
}
