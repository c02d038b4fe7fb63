package balancer_test

import (
	"fmt"
	"testing"
	"time"

	"vipd/balancer"
)

// ramping compiles a service at successive times and passes the memory from one compilation to the
// next, like the daemon.
type ramping struct {
	t      *testing.T
	now    time.Time
	in     balancer.Inputs
	memory balancer.Memory
	before balancer.Desired
}

// compiled formats the backends that result from the current inputs (see states). It compiles
// twice, because the memory that results from the first compilation affects the second.
func (r *ramping) compiled() string {
	r.t.Helper()
	memory, out := r.memory.Expire(r.now), r.before
	for range 2 {
		r.in = r.in.WithMemory(memory)
		out = balancer.Compile(plainEnv(), r.in)
		memory = memory.After(r.before, out, r.now)
	}
	r.memory, r.before = memory, out
	return states(plainEnv(), r.in, "10.96.0.1:80")
}

func (r *ramping) after(d time.Duration) string {
	r.now = r.now.Add(d)
	return r.compiled()
}

func (r *ramping) verdict(last int, v balancer.Verdict) {
	r.in.Health = r.in.Health.Set(balancer.Target{Service: "web", Addr: addr(fmt.Sprintf("192.168.0.%d", last)), Port: 8080}, v)
}

func (r *ramping) service(n int, change func(*balancer.Service)) {
	s := oneService("web", 1, n)
	s.SlowStart = 10 * time.Second
	if change != nil {
		change(s)
	}
	r.in.Services = r.in.Services.Set("web", s)
}

func newRamping(t *testing.T) *ramping {
	t.Helper()
	return &ramping{t: t, now: time.Unix(1_700_000_000, 0)}
}

func want(t *testing.T, when, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", when, got, want)
	}
}

func TestSlowStart(t *testing.T) {
	r := newRamping(t)
	r.service(2, nil)
	want(t, "at the beginning", r.compiled(), "0:active/1 1:active/1")
	if !r.memory.NextExpiry().IsZero() {
		t.Errorf("NextExpiry() = %s, want none", r.memory.NextExpiry())
	}
	r.service(3, nil)
	want(t, "one joins", r.compiled(), "0:active/10 1:active/10 2:active/1")
	if got := r.memory.NextExpiry().Sub(r.now); got != time.Second {
		t.Errorf("next step of the ramp is due after %s, want 1s", got)
	}
	want(t, "after 1 s", r.after(time.Second), "0:active/10 1:active/10 2:active/2")
	want(t, "after 5.5 s", r.after(4500*time.Millisecond), "0:active/10 1:active/10 2:active/6")
	r.verdict(0, balancer.HealthDown)
	want(t, "another fails", r.compiled(), "0:down/0 1:active/10 2:active/6")
	want(t, "after 8.5 s", r.after(3*time.Second), "0:down/0 1:active/10 2:active/9")
	r.verdict(0, balancer.HealthUp)
	r.verdict(1, balancer.HealthUp)
	r.verdict(2, balancer.HealthUp)
	want(t, "it recovers", r.compiled(), "0:active/1 1:active/10 2:active/9")
	want(t, "after 9 s", r.after(500*time.Millisecond), "0:active/1 1:active/10 2:active/10")
	want(t, "after 18.5 s", r.after(9500*time.Millisecond), "0:active/1 1:active/1 2:active/1")
	if !r.memory.NextExpiry().IsZero() {
		t.Errorf("NextExpiry() = %s, want none", r.memory.NextExpiry())
	}
}

// TestNoRamp makes all endpoints recover together, disables slow start, ends a drain, and removes
// the frontend. A ramp may start only while other endpoints serve. In the end, no ramp may remain.
func TestNoRamp(t *testing.T) {
	r := newRamping(t)
	r.service(2, nil)
	r.verdict(0, balancer.HealthDown)
	r.verdict(1, balancer.HealthDown)
	want(t, "all down", r.compiled(), "0:down/0 1:down/0")
	r.verdict(0, balancer.HealthUp)
	r.verdict(1, balancer.HealthUp)
	want(t, "all recover", r.compiled(), "0:active/1 1:active/1")
	r.service(3, nil)
	r.verdict(2, balancer.HealthUp)
	want(t, "one joins", r.compiled(), "0:active/10 1:active/10 2:active/1")
	r.verdict(2, balancer.HealthDown)
	want(t, "it fails", r.compiled(), "0:active/1 1:active/1 2:down/0")
	r.verdict(2, balancer.HealthUp)
	want(t, "it recovers", r.after(5*time.Second), "0:active/10 1:active/10 2:active/1")
	r.service(3, func(s *balancer.Service) { s.SlowStart = 0 })
	want(t, "without slow start", r.compiled(), "0:active/1 1:active/1 2:active/1")
	r.service(3, func(s *balancer.Service) { s.Endpoints[0].Draining = true })
	r.compiled()
	r.service(3, nil)
	want(t, "a drain is over", r.compiled(), "0:active/1 1:active/10 2:active/10")
	r.in.Services = r.in.Services.Delete("web")
	want(t, "gone", r.compiled(), "no frontend")
	if r.memory.Ramps.Len() != 0 {
		t.Error("a removed frontend's ramps remain, want none")
	}
}

// TestRampWeights starts the ramp of an endpoint, with small and large weights. The endpoint's
// share must be as exact as integer weights permit.
func TestRampWeights(t *testing.T) {
	for _, c := range []struct {
		weights [2]int // of the serving and of the joining endpoint
		want    string
	}{
		{[2]int{3, 4}, "0:active/30 1:active/4"},
		{[2]int{1, 65535}, "0:active/1 1:active/6553"},
		{[2]int{30000, 1}, "0:active/60000 1:active/1"},
		{[2]int{7, 0}, "0:active/7 1:zero-weight/0"},
	} {
		r := newRamping(t)
		r.service(1, func(s *balancer.Service) { s.Endpoints[0].Weight = c.weights[0] })
		r.compiled()
		r.service(2, func(s *balancer.Service) { s.Endpoints[0].Weight, s.Endpoints[1].Weight = c.weights[0], c.weights[1] })
		want(t, fmt.Sprint(c.weights), r.compiled(), c.want)
	}
}

// TestRampEnds makes random changes, and then waits until each slow start is over. No ramp may
// remain, and the weights must be the same as without ramps.
func TestRampEnds(t *testing.T) {
	ramped := 0
	for seed := range uint64(300) {
		h := newHistory(seed)
		var c balancer.Compiler
		var before balancer.Desired
		for range 20 {
			h.step()
			got := c.Once(h.env, h.in)
			h.remember(before, got)
			before = got
			ramped += h.memory.Ramps.Len()
		}
		for range 3 { // several times, because the memory affects the result, and the result affects the memory
			h.now = h.now.Add(time.Minute)
			got := c.Once(h.env, h.in)
			h.remember(before, got)
			before = got
		}
		if h.memory.Ramps.Len() > 0 {
			t.Fatalf("seed %d: ramps after the last slow start = %d, want none", seed, h.memory.Ramps.Len())
		}
		rest := h.in
		rest.Ramps = balancer.Inputs{}.Ramps
		if d := sameDesired(c.Once(h.env, h.in), balancer.Compile(h.env, rest)); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
	if ramped < 20 {
		t.Errorf("ramps for all seeds = %d, want at least 20", ramped)
	}
}
