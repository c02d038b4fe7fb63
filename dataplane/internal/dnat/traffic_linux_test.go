package dnat

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
	"vipd/test/lab"
	"vipd/test/wait"
)

// accounted makes the kernel count the bytes of flows, before the dataplane checks this setting.
func accounted(t *testing.T) {
	t.Helper()
	lab.Require(t)
	lab.New(t).Host().Sysctl("net.netfilter.nf_conntrack_acct", "1")
}

// TestEndsWaitForNoList ends flows and reads counters while another reader lists all flows. Neither
// may wait for this list.
func TestEndsWaitForNoList(t *testing.T) {
	accounted(t)
	r := newRig(t)
	f := r.web(balancer.TCP, 2)
	r.apply(f)
	r.ask(balancer.TCP)
	begun, release, looked := make(chan bool), make(chan bool), make(chan error, 1)
	go func() { // only one list can be in progress, so the next reading waits for this list
		first := true
		_ = r.tracker.traffic.conn.Each(context.Background(), conntrack.Filter{}, func(*conntrack.Flow) error {
			if first {
				first = false
				close(begun)
				<-release
			}
			return nil
		})
	}()
	<-begun
	look := func() { looked <- r.tracker.traffic.look(context.Background()) }
	go look()
	wait.For(t, 5*time.Second, "the reading to begin", func() bool {
		if r.tracker.traffic.looking.TryLock() {
			r.tracker.traffic.looking.Unlock()
			select {
			case <-looked: // this query returned because another reading was in progress
				go look()
			default:
			}
			return false
		}
		return true
	})
	done := make(chan bool)
	go func() {
		defer close(done)
		r.tracker.traffic.end(&conntrack.Flow{
			Proto: balancer.TCP, Status: conntrack.DstNAT, In: 1, Out: 1,
			Orig:  conntrack.Tuple{Dst: f.AddrPort()},
			Reply: conntrack.Tuple{Src: f.Backends[0].Addr},
		})
		if err := r.tracker.traffic.look(context.Background()); err != nil { // as a second list, it would have to wait for the first
			t.Error(err)
		}
	}()
	select {
	case <-done:
	case <-time.After(wait.Patience):
		t.Error("the report of an ended flow or a second query waited for the list of all flows")
	}
	close(release)
	if err := <-looked; err != nil {
		t.Error(err)
	}
	<-done
}

// TestBytesOfServicesThatGo removes a service that has an open flow, and adds it again. The flow's
// bytes must be counted only once. The bytes of new flows must also be counted.
func TestBytesOfServicesThatGo(t *testing.T) {
	accounted(t)
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		t.Run(string(proto), func(t *testing.T) {
			r := newRig(t)
			f := r.web(proto, 2)
			r.apply(f)
			if r.tracker.traffic.ends == nil {
				t.Fatal("conntrack does not count bytes, want counting enabled")
			}
			c, _ := r.ask(proto)
			client := netip.MustParseAddrPort(c.LocalAddr().String())
			want := r.volumeOf(client)
			r.remove(f) // the frontend's drain_timeout is 0
			at := counters.Port{Service: f.Service, Name: f.Port}
			bytes := func() volume {
				r.readConntrack()
				all, _ := r.tracker.traffic.bytes(at)
				return all
			}
			wait.For(t, 5*time.Second, "the flow's bytes after its end", func() bool {
				got := bytes()
				return got.in >= want.in && got.out >= want.out
			})
			wait.For(t, 5*time.Second, "the removed service's flow to end", func() bool { return len(r.tracked(proto)) == 0 })
			before := bytes()
			if before.in >= 2*want.in || before.out >= 2*want.out { // the flow may have got another acknowledgement since
				t.Errorf("counted bytes = %+v, want less than twice the kernel's %+v", before, want)
			}
			r.apply(f)
			r.ask(proto)
			if after := bytes(); after.in <= before.in || after.out <= before.out {
				t.Errorf("counted bytes = %+v before the service was added again and %+v with a new flow, want an increase", before, after)
			}
		})
	}
}

// volumeOf returns the kernel's byte counts for a client's only flow.
func (r *rig) volumeOf(client netip.AddrPort) (v volume) {
	r.Helper()
	if err := r.tracker.traffic.conn.Each(context.Background(), conntrack.Filter{}, func(f *conntrack.Flow) error {
		if f.Client() == client {
			v = volume{f.In, f.Out}
		}
		return nil
	}); err != nil {
		r.Fatal(err)
	}
	if v.in == 0 || v.out == 0 {
		r.Fatalf("counts for the flow from %s = %+v, want more than 0", client, v)
	}
	return v
}

// TestLiveConnectionsAndBytes opens connections and sends bytes. The counts from conntrack must
// match.
func TestLiveConnectionsAndBytes(t *testing.T) {
	accounted(t)
	r := newRig(t)
	r.apply(r.web(balancer.TCP, 2))
	c, _ := r.ask(balancer.TCP)
	all := r.counted()
	if n := all.Backends[0].Active; n != 1 {
		t.Errorf("live connections = %d, want 1", n)
	}
	if all.In == 0 || all.Out == 0 {
		t.Errorf("bytes with an open connection = %d in, %d out, want more than 0", all.In, all.Out)
	}
	conns, err := dataplane.Connections(context.Background(), r.tracker, dataplane.ConnectionQuery{})
	i := slices.IndexFunc(conns, func(n dataplane.Connection) bool { return n.Client.String() == c.LocalAddr().String() })
	if err != nil || i < 0 || conns[i].Service != "web" || conns[i].Backend.Addr() != r.address(2) ||
		conns[i].State != "established" || conns[i].In == 0 {
		t.Errorf("connections = %+v, %v; want an established connection with bytes", conns, err)
	}
	_ = c.Close()
	wait.For(t, 5*time.Second, "the connection to be live no more", func() bool {
		again := r.counted()
		if again.In < all.In || again.Out < all.Out {
			t.Fatalf("bytes = %d in, %d out before and %d in, %d out after, want no decrease", all.In, all.Out, again.In, again.Out)
		}
		return again.Backends[0].Active == 0
	})
}

// TestIdleFlowsAreNotLive pauses a UDP flow, and then sends another packet. During the pause, the
// flow must count as idle, even though the kernel still has it. To save time, the test increases
// the kernel's timeout instead of waiting, which has the same effect.
func TestIdleFlowsAreNotLive(t *testing.T) {
	lab.Require(t)
	host := lab.New(t).Host()
	r := newRig(t)
	r.apply(r.web(balancer.UDP, 2))
	c, _ := r.ask(balancer.UDP)
	want := func(active uint64, idle bool) {
		t.Helper()
		if n := r.counted().Backends[0].Active; n != active {
			t.Errorf("live flows = %d, want %d", n, active)
		}
		conns, err := dataplane.Connections(t.Context(), r.tracker, dataplane.ConnectionQuery{})
		if err != nil || len(conns) != 1 || (conns[0].State == dataplane.Idle) != idle {
			t.Errorf("connections = %+v, %v; want one with idle = %v", conns, err, idle)
		}
	}
	const timeout = "net.netfilter.nf_conntrack_udp_timeout"
	for _, name := range []string{timeout, timeout + "_stream"} { // long compared with the test
		host.Sysctl(name, "100000")
	}
	if _, err := lab.Ask(c); err != nil {
		t.Fatal(err)
	}
	want(1, false)
	for _, name := range []string{timeout, timeout + "_stream"} {
		host.Sysctl(name, "100011")
	}
	want(0, true)
	if _, err := lab.Ask(c); err != nil {
		t.Fatal(err)
	}
	want(1, false)
}
