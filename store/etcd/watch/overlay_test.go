package watch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// follower simulates Watch on the node n1. The test provides its keys and its clock.
type follower struct {
	*watchRun
	now      time.Time
	revision int64
	values   map[string]*mvccpb.KeyValue
	last     store.Snapshot
	outcomes map[store.Outcome]int
}

func newFollower(t *testing.T) *follower {
	f := &follower{now: time.Unix(1_800_000_000, 0), values: map[string]*mvccpb.KeyValue{}, outcomes: map[store.Outcome]int{}}
	f.restart(t)
	return f
}

// restart replaces the process with a new process that has already read all keys, from etcd or from
// its saved state.
func (f *follower) restart(t *testing.T) {
	zone := ""
	s, err := New(Options{
		Config: client.Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/p"}, Node: "n1",
		Configured: func(c schema.NodeConfig) { zone = c.Zone }, Zone: func() string { return zone },
		Pended: func(_ *store.Pending, how store.Outcome, _ string) { f.outcomes[how]++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.timing.Now = func() time.Time { return f.now }
	f.watchRun = &watchRun{Source: s, publish: func(s store.Snapshot) { f.last = s }, reader: reader{keys: s.keys}, state: state{keys: s.keys}}
	for _, kv := range f.values {
		f.put(kv)
	}
	f.state.Revision = f.revision
	f.contact.connected = true
	f.publishDue()
}

func (f *follower) put(kv *mvccpb.KeyValue) {
	f.state.put(f.reader.record(kv, f.state.records.At(rawKey(kv.Key))), f.now)
}

// write writes a value to etcd, and returns it. The process receives it only when put is called.
func (f *follower) write(key, text string) *mvccpb.KeyValue {
	f.revision++
	kv := &mvccpb.KeyValue{Key: []byte("/p/" + key), Value: []byte(text), CreateRevision: f.revision, ModRevision: f.revision}
	if old := f.values[key]; old != nil {
		kv.CreateRevision = old.CreateRevision
	}
	f.values[key] = kv
	return kv
}

// wantInAnyOrder delivers the values in the given order, and publishes after each. After each,
// served must return want.
func (f *follower) wantInAnyOrder(t *testing.T, when, want string, values ...*mvccpb.KeyValue) {
	t.Helper()
	for _, kv := range values {
		f.put(kv)
		f.state.Revision = f.revision
		f.expect(t, when, want)
	}
}

func (f *follower) expect(t *testing.T, when, want string) {
	t.Helper()
	f.publishDue()
	if got := f.served(); got != want {
		t.Fatalf("%s: served = %s, want %s", when, got, want)
	}
}

func (f *follower) served() string {
	s := f.last.Services.At("web")
	if s == nil {
		return "none"
	}
	return fmt.Sprint(s.VIPs[0].As4()[3])
}

func numbered(n int) string {
	return fmt.Sprintf(`{"vips":["10.96.0.%d"],"ports":[{"port":80}]}`, n)
}

// TestPendingOfZone starts a process while a change for a zone is pending. The node's configuration
// in etcd sets this zone. The first snapshot must already contain the change.
func TestPendingOfZone(t *testing.T) {
	f := newFollower(t)
	f.write("services/web", numbered(1))
	f.write("nodes/n1/config", `{"zone":"b"}`)
	f.write("pending", pendingText(&schema.Pending{By: "ana", Since: f.now, Until: f.now.Add(time.Minute), On: []string{"zone=b"}}, 2, 1))
	f.restart(t)
	if f.served() != "2" {
		t.Errorf("served in the first snapshot = %s, want 2", f.served())
	}
}

// TestPendingAbortByAnotherClock aborts a pending change. The clock of the host that wrote the
// change is ahead. The node must still revert the change immediately.
func TestPendingAbortByAnotherClock(t *testing.T) {
	f := newFollower(t)
	p := &schema.Pending{By: "ana", Since: f.now.Add(time.Hour), Until: f.now.Add(2 * time.Hour)}
	f.wantInAnyOrder(t, "the first state", "1", f.write("services/web", numbered(1)))
	f.wantInAnyOrder(t, "a change", "2", f.write("pending", pendingText(p, 2, 1)))
	p.Until, p.Ended = p.Since, "bob"
	f.wantInAnyOrder(t, "an abort", "1", f.write("pending", pendingText(p, 2, 1)))
	if f.outcomes[store.Aborted] != 1 {
		t.Errorf("outcomes = %v, want one abort", f.outcomes)
	}
}

// TestPendingChecks starts a pending change to a service whose checks the fleet shares. If the
// change is only for some nodes, each of them must check the service itself. If it is for all
// nodes, they must share the checks.
func TestPendingChecks(t *testing.T) {
	for _, test := range []struct {
		on   []string
		want balancer.HealthFrom
	}{{[]string{"n1"}, balancer.HealthFromNode}, {nil, balancer.HealthFromFleet}} {
		f := newFollower(t)
		fields, _ := schema.ParseObject([]byte(`{"vips":["10.96.0.2"],"ports":[{"port":80}],"health":[{"type":"tcp","from":"fleet"},{"type":"http"}]}`))
		text, _ := schema.Encode(&schema.Pending{By: "ana", Since: f.now, Until: f.now.Add(time.Minute), On: test.on, Services: map[balancer.Name]*schema.PendingService{"web": {Fields: fields}}})
		f.wantInAnyOrder(t, "a change", "2", f.write("pending", string(text)))
		s := f.last.Services.At("web")
		for _, h := range append([]*balancer.Health{s.Health}, s.MoreHealth...) {
			if h.From != test.want {
				t.Errorf("change on nodes %v: From of the %s check = %q, want %q", test.on, h.Type, h.From, test.want)
			}
		}
	}
}

// pendingText returns the text of the pending change p. The change sets the service "web" to the
// definition with number n, and base is the revision that it replaces.
func pendingText(p *schema.Pending, n int, base int64) string {
	fields, _ := schema.ParseObject([]byte(numbered(n)))
	p.Services = map[balancer.Name]*schema.PendingService{"web": {Fields: fields, Base: base}}
	text, _ := schema.Encode(p)
	return string(text)
}

// TestPendingHistories applies random sequences of writes, pending changes, confirmations, aborts,
// deadlines, restarts and etcd outages. After each step, the process must serve the service that a
// model expects. The two keys of a confirmation arrive in either order.
func TestPendingHistories(t *testing.T) {
	seen := map[store.Outcome]int{}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		f := newFollower(t)
		stored, pending, base := 1, 0, int64(0)
		p := &schema.Pending{By: "ana"}
		web := func() int64 { return f.values["services/web"].ModRevision }
		served := func() string {
			if pending > 0 && f.now.Before(p.Until) && base == web() {
				return fmt.Sprint(pending)
			}
			return fmt.Sprint(stored)
		}
		f.wantInAnyOrder(t, "the first state", "1", f.write("services/web", numbered(stored)))
		for step := range 40 {
			when := fmt.Sprintf("seed %d, step %d", seed, step)
			if !f.now.Before(p.Until) {
				pending = 0
			}
			switch next := 2 + random.IntN(200); random.IntN(7) {
			case 0:
				stored = next
				kv := f.write("services/web", numbered(stored))
				f.wantInAnyOrder(t, when+", a write", served(), kv)
			case 1:
				if pending > 0 {
					continue // another change would be refused
				}
				pending, base = next, web()
				*p = schema.Pending{By: "ana", Since: f.now, Until: f.now.Add(time.Minute)}
				if random.IntN(4) == 0 {
					p.On, pending = []string{"n2", "zone=z"}, 0
				}
				f.wantInAnyOrder(t, when+", a change", served(), f.write("pending", pendingText(p, next, base)))
			case 2:
				if pending == 0 || base != web() {
					continue
				}
				p.Confirmed, p.Ended, stored = true, "bob", pending
				values := []*mvccpb.KeyValue{f.write("services/web", numbered(stored)), f.write("pending", pendingText(p, pending, base))}
				random.Shuffle(2, func(i, j int) { values[i], values[j] = values[j], values[i] })
				pending = 0
				f.wantInAnyOrder(t, when+", a confirmation", served(), values...)
			case 3:
				if pending == 0 {
					continue
				}
				p.Until, p.Ended = p.Since, "bob"
				kv := f.write("pending", pendingText(p, pending, base))
				pending = 0
				f.wantInAnyOrder(t, when+", an abort", served(), kv)
			case 4:
				f.now = f.now.Add(time.Duration(random.IntN(50)) * time.Second)
				f.expect(t, when+", later", served())
			case 5:
				f.restart(t)
				f.expect(t, when+", a restart", served())
			case 6:
				f.contact.connected = !f.contact.connected
				f.contact.since = f.now
				f.expect(t, when+", etcd is away or back", served())
			}
			f.now = f.now.Add(time.Second)
		}
		for how, n := range f.outcomes {
			seen[how] += n
		}
	}
	for _, how := range []store.Outcome{store.Started, store.Confirmed, store.Aborted, store.Expired} {
		if seen[how] == 0 {
			t.Errorf("outcome %s never occurred for any seed: %v", how, seen)
		}
	}
}
