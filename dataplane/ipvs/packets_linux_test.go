package ipvs

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/wait"
)

// TestIPVSServes has clients reach every server in turn, by connections and by flows, and nobody any more when the
// frontend is gone.
func TestIPVSServes(t *testing.T) {
	r := newRig(t)
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		r.set(r.web(proto, 2, 3))
		met := map[string]int{}
		for range 6 {
			_, name := r.dial(proto)
			met[name]++
		}
		if met["s2"] != 3 || met["s3"] != 3 {
			t.Errorf("%s: 6 connections went to %v", proto, met)
		}
	}
	if reason, err := r.d.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("Intact: %q, %v", reason, err)
	}
	r.set()
	if _, name, err := r.tryDial(balancer.TCP); err == nil {
		t.Errorf("%s answers though the frontend is gone", name)
	}
}

// removed is f with the server of that number leaving.
func (r *rig) removed(f *balancer.Frontend, i int, until time.Time) *balancer.Frontend {
	return r.with(f, i, func(b *balancer.Backend) { b.State, b.Weight, b.Until = balancer.Removed, 0, until })
}

// TestIPVSDrains has connections of an endpoint that goes live until its time is over, through a restart, while new ones
// go elsewhere; and those of one that comes back live on.
func TestIPVSDrains(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.TCP, 2)
	r.set(f)
	c, _ := r.dial(balancer.TCP)
	both := r.web(balancer.TCP, 2, 3)
	r.set(r.removed(both, 2, time.Now().Add(time.Hour)))
	for range 3 {
		if _, name := r.dial(balancer.TCP); name != "s3" {
			t.Errorf("%s gets a new connection, want s3", name)
		}
	}
	r.set(both)
	if err := alive(c); err != nil || r.weight(f, 2) != 1 {
		t.Errorf("the connection of an endpoint that is back: %v; its weight is %d", err, r.weight(f, 2))
	}
	leaving := r.removed(both, 2, time.Now().Add(time.Hour))
	r.set(leaving)
	before := r.table()
	r.restart()
	r.set(leaving)
	if now := r.table(); now != before {
		t.Errorf("the next process made\n%sof\n%s", now, before)
	}
	if err := alive(c); err != nil {
		t.Errorf("the connection of an endpoint that drains, after a restart: %v", err)
	}
	until := time.Now().Add(wait.Scaled(time.Second))
	leaving = r.removed(both, 2, until)
	r.set(leaving)
	r.restart()
	r.set(leaving)
	wait.For(t, time.Until(until)+10*time.Second, "the destination to go", func() bool { return r.weight(f, 2) < 0 })
	if time.Now().Before(until) {
		t.Error("it went before its time")
	}
	r.ends(c)
}

// TestIPVSFrontendLeaves has a frontend that goes stay with its connections until its drain timeout is over; those of one that has
// more time live on.
func TestIPVSFrontendLeaves(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.TCP, 2, 3)
	f.DrainTimeout = wait.Scaled(time.Second)
	long := *f
	long.DrainTimeout = time.Hour
	r.set(&long)
	c, _ := r.dial(balancer.TCP)
	r.set()
	if _, name, err := r.tryDial(balancer.TCP); err == nil {
		t.Errorf("%s gets a new connection", name)
	}
	if err := alive(c); err != nil {
		t.Errorf("its connection: %v", err)
	}
	r.set(f)
	if err := alive(c); err != nil {
		t.Errorf("its connection, when the frontend is back: %v", err)
	}
	removed := time.Now()
	r.set()
	wait.For(t, 10*time.Second, "the virtual server to go", func() bool { return r.table() == "" })
	if time.Since(removed) < f.DrainTimeout {
		t.Error("it went before its time")
	}
	r.ends(c)
}

// TestIPVSMovesUDP has a UDP client that keeps its port move at once when its endpoint goes, and find one that comes
// after it has asked in vain.
func TestIPVSMovesUDP(t *testing.T) {
	r := newRig(t)
	r.set(r.web(balancer.UDP, 2))
	c, _ := r.dial(balancer.UDP)
	r.set(r.web(balancer.UDP, 3))
	r.follows(c, "s3")
	r.set()
	for range 3 {
		r.follows(c, "")
	}
	r.set(r.web(balancer.UDP, 4))
	r.follows(c, "s4")
}

// TestIPVSAffinity has a client stay with its endpoint, and leave it when that drains, though the kernel remembers it.
func TestIPVSAffinity(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.TCP, 2, 3, 4)
	f.AffinityTimeout = time.Hour
	r.set(f)
	_, first := r.dial(balancer.TCP)
	for range 5 {
		if _, name := r.dial(balancer.TCP); name != first {
			t.Errorf("the client of %s meets %s", first, name)
		}
	}
	i := int(first[1] - '0')
	r.set(r.with(f, i, func(b *balancer.Backend) { b.State, b.Weight = balancer.Draining, 0 }))
	for range 3 {
		if _, name := r.dial(balancer.TCP); name == first {
			t.Errorf("%s, which drains, gets a new connection", name)
		}
	}
	conns, err := dataplane.Connections(t.Context(), r.d, dataplane.ConnectionQuery{})
	if err != nil || len(conns) != 9 {
		t.Errorf("%d connections, %v; want 9, without what is only remembered: %+v", len(conns), err, conns)
	}
}

// TestIPVSFallsBack has schedulers by hash refuse nobody because an endpoint drains.
func TestIPVSFallsBack(t *testing.T) {
	r := newRig(t)
	for _, scheduler := range []balancer.Scheduler{balancer.SourceHash, balancer.Maglev, balancer.DestinationHash} {
		f := r.web(balancer.TCP, 2, 3)
		f.Scheduler = scheduler
		r.set(f)
		c, name := r.dial(balancer.TCP)
		r.set(r.with(f, int(name[1]-'0'), func(b *balancer.Backend) { b.State, b.Weight = balancer.Draining, 0 }))
		for range 3 {
			if _, now := r.dial(balancer.TCP); now == name {
				t.Errorf("%s: while %s drains, it answers", scheduler, name)
			}
		}
		if err := alive(c); err != nil {
			t.Errorf("%s: the connection of the endpoint that drains: %v", scheduler, err)
		}
	}
}

// TestIPVSBounds has endpoints get no more connections than they may have.
func TestIPVSBounds(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.TCP, 2, 3)
	for i := range f.Backends {
		f.Backends[i].MaxConnections = 2
	}
	r.set(f)
	var open []net.Conn
	for range 4 {
		c, _ := r.dial(balancer.TCP)
		open = append(open, c)
	}
	if _, name, err := r.tryDial(balancer.TCP); err == nil {
		t.Errorf("%s takes a fifth connection, want two at each of two", name)
	}
	for _, c := range open {
		if err := alive(c); err != nil {
			t.Error(err)
		}
	}
	r.restart()
	r.set(f)
	if reason, err := r.d.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("after a restart: %q, %v", reason, err)
	}
}

// TestIPVSCounts has the kernel's counters be told, through all that has it begin anew.
func TestIPVSCounts(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.UDP, 6) // which no other test uses: the kernel remembers
	want := func(when string, total, active uint64) {
		t.Helper()
		var got, live, in, out uint64
		defer func() {
			if t.Failed() {
				t.Logf("%s: %d connections, %d live, %d bytes in, %d out; want %d and %d", when, got, live, in, out, total, active)
			}
		}()
		wait.For(t, 10*time.Second, when+" to be counted", func() bool {
			got, live = 0, 0
			for _, c := range r.d.Counters() {
				got, in, out = got+c.Connections, c.In, c.Out
				for _, b := range c.Backends {
					live += b.Active
				}
			}
			return got >= total && live == active
		})
		if got != total || in == 0 || out == 0 {
			t.Error("the kernel counts otherwise")
		}
	}
	ask := func(n int) {
		for range n {
			r.dial(balancer.UDP)
		}
	}
	ended := func() { // a little after the endpoint, the kernel ends its flows
		t.Helper()
		wait.For(t, 10*time.Second, "the flows of an endpoint that went to end", func() bool {
			for c, err := range r.d.conn.Connections(t.Context()) {
				if err != nil || c.Backend.Addr() == f.Backends[0].Addr.Addr() {
					return false
				}
			}
			return true
		})
	}
	r.set(f)
	ask(3)
	want("three flows", 3, 3)
	ask(2)
	want("two more", 5, 5)
	r.set(r.web(balancer.UDP, 7))
	ended()
	r.set(f) // the kernel goes on counting from where it was
	ask(1)
	want("an endpoint that went and came back", 6, 1)
	r.set()
	ended()
	r.set(f)
	ask(1)
	want("a frontend that went and came back", 7, 1)
}

// TestIPVSForeign has virtual servers of others stay as they are, through changes, restarts and the end.
func TestIPVSForeign(t *testing.T) {
	r := newRig(t)
	for _, args := range []string{
		"-A -t 10.96.0.10:81 -s rr -p 300", "-a -t 10.96.0.10:81 -r 10.9.9.9:80 -m -w 7", "-A -t 10.96.0.10:82 -s rr", "-A -f 5 -s wrr",
		"-A -u [fd00::1]:53 -s mh",
	} {
		r.ipvsadm(strings.Fields(args)...)
	}
	before := r.table()
	r.others = before
	theirs := func(when string) {
		t.Helper()
		lines := slices.DeleteFunc(strings.SplitAfter(r.table(), "\n"), func(line string) bool { return strings.Contains(line, " 10.96.0.10:80 ") })
		if got := strings.Join(lines, ""); got != before {
			t.Errorf("%s others have\n%swant\n%s", when, got, before)
		}
	}
	blocked := r.web(balancer.TCP, 2)
	blocked.Key.Port = 82
	for i := range 10 {
		r.tell(r.web(balancer.TCP, 2+i%3, 5+i%2), blocked)
		wait.For(t, 10*time.Second, "the engine to say what stands in the way", func() bool {
			s := r.engine.Status()
			return s.Applied.Store == r.sets && s.Failing[blocked.Key] != nil
		})
		r.dial(balancer.TCP)
		if i%5 == 4 {
			theirs("after changes")
			r.restart()
		}
	}
	if err := r.engine.Status().Failing[blocked.Key]; err != nil && !strings.Contains(err.Error(), "ipvsadm -D -t 10.96.0.10:82") {
		t.Errorf("%q does not say how to get out", err)
	}
	r.set(r.web(balancer.TCP, 2))
	r.stop()
	if err := r.d.Close(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		done, err := Cleanup(context.Background(), r.dir, dry)
		if want := []string{"delete virtual server 10.96.0.10:80/tcp"}; err != nil || !slices.Equal(done, want) {
			t.Errorf("cleanup does %q, %v; want %q", done, err, want)
		}
		theirs("after a cleanup")
	}
	if now := r.table(); now != before {
		t.Errorf("after everything there is\n%swant\n%s", now, before)
	}
	r.open()
}

// TestIPVSMendsFlush has everything come back after somebody has cleared the table.
func TestIPVSMendsFlush(t *testing.T) {
	r := newRig(t)
	r.set(r.web(balancer.TCP, 2), r.web(balancer.UDP, 2))
	want := r.table()
	r.ipvsadm("-C")
	wait.For(t, 3*time.Second, "everything to be back", func() bool { return r.table() == want })
	r.ipvsadm("-d", "-t", "10.96.0.10:80", "-r", "10.2.0.2:8080")
	wait.For(t, 3*time.Second, "the destination to be back", func() bool { return r.table() == want })
}
