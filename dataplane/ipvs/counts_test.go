package ipvs

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/ipvsnl"
)

// counted waits, and then returns a service's counts: its connections, its received bytes, and
// endpoint i's total and live connections.
func (p *process) counted(name balancer.Name, i int) (all, in, backend, active uint64) {
	time.Sleep(2 * time.Second) // synctest's virtual time
	return p.countedNow(name, i)
}

func (p *process) countedNow(name balancer.Name, i int) (all, in, backend, active uint64) {
	for _, f := range p.Counters() {
		if f.Service != name {
			continue
		}
		for _, b := range f.Backends {
			if b.Backend == address(key(0), i) {
				backend, active = b.Connections, b.Active
			}
		}
		return f.Connections, f.In, backend, active
	}
	return
}

// traffic adds n connections and their bytes to the counters of destination i.
func (p *process) traffic(f *balancer.Frontend, i int, n uint64) {
	p.Helper()
	if err := p.k.SetDestination(f.Key, address(f.Key, i), func(s *ipvsnl.DestinationState) {
		s.Connections += n
		s.InBytes += 100 * n
	}); err != nil {
		p.Fatal(err)
	}
}

// TestCountersNeverGoBack makes the kernel's counters start again at 0 in several ways. The
// reported counts must never decrease.
func TestCountersNeverGoBack(t *testing.T) {
	for name, trash := range map[string]map[counters.BackendKey]ipvsnl.Stats{"anew": nil, "on": {}} {
		t.Run("the kernel counts "+name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { neverBack(t, dir, trash) })
		})
	}
}

func neverBack(t *testing.T, dir string, trash map[counters.BackendKey]ipvsnl.Stats) {
	p := start(t, newKernel(), dir)
	p.k.trash = trash
	p.observe()
	f := web(key(0), 1, 2)
	without := web(key(0), 1)
	want := func(when string, total, second uint64) {
		t.Helper()
		if all, in, backend, _ := p.counted("web", 2); all != total || in != 100*total || backend != second {
			t.Errorf("%s: connections = %d, bytes = %d, connections of endpoint 2 = %d; want %d, %d, %d", when, all, in, backend, total, 100*total, second)
		}
	}
	p.apply(f)
	want("at first", 0, 0)
	p.traffic(f, 1, 3)
	p.traffic(f, 2, 5)
	want("after traffic", 8, 5)
	p.traffic(f, 2, 2) // vipd does not read these counts before the next step
	p.apply(without)
	want("after an endpoint went", 10, 7)
	p.apply(f)
	p.traffic(f, 2, 1)
	want("after it came back with nothing", 11, 8)
	p.apply(without)
	p.apply(f)
	if err := p.k.SetDestination(f.Key, address(f.Key, 2), func(s *ipvsnl.DestinationState) { s.Connections, s.InBytes = 0, 0 }); err != nil {
		t.Fatal(err)
	}
	p.traffic(f, 2, 4)
	want("after somebody set it back", 15, 12)
	p.remove(f)
	want("after the frontend went", 15, 12)
	p.apply(f)
	p.traffic(f, 1, 1)
	want("after it came back", 16, 12)
	p.k.Flush()
	p.observe()
	p.apply(f)
	p.traffic(f, 2, 1)
	want("after somebody cleared the table", 17, 13)
	g := *f
	g.Service = "other"
	p.traffic(f, 1, 2)
	p.apply(&g)
	p.traffic(f, 1, 4)
	want("after another service got the key", 19, 13)
	if all, _, _, _ := p.counted("other", 1); all != 4 {
		t.Errorf("counted connections of the other service = %d, want 4", all)
	}
	p.k.connect(t, f, 2, 3, 2)
	p.traffic(f, 2, 3)
	if _, _, _, active := p.counted("other", 2); active != 3 {
		t.Errorf("live connections = %d, want 3", active)
	}
	if err := p.Close(t.Context(), true); err != nil {
		t.Error(err)
	}
}

// TestIdleFlowsAreNotLive drains an endpoint that has flows. Flows without recent packets must not
// count as live.
func TestIdleFlowsAreNotLive(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, newKernel(), dir)
		p.observe()
		f := web(key(1), 1, 2)
		p.apply(f)
		var table []ipvsnl.Connection
		for i, quiet := range []time.Duration{0, dataplane.IdleAfter - time.Second, dataplane.IdleAfter, time.Minute} {
			client := netip.AddrPortFrom(address(f.Key, 100).Addr(), uint16(1000+i))
			table = append(table, ipvsnl.Connection{
				Proto: f.Proto, Client: client, Frontend: f.AddrPort(), Backend: address(f.Key, 1), State: "udp", Expires: 5*time.Minute - quiet,
			})
		}
		p.k.SetConnections(table)
		p.k.connect(t, f, 1, 0, uint32(len(table)))
		p.traffic(f, 1, uint64(len(table)))
		p.apply(drained(f, 1, balancer.Draining, time.Time{}))
		if all, _, _, active := p.counted("web", 1); active != 2 || all != 4 {
			t.Errorf("live flows = %d of %d, want 2 of 4", active, all)
		}
		p.k.SetConnections(nil)
		if _, _, _, active := p.countedNow("web", 1); active != 2 {
			t.Errorf("second reading: live flows = %d, want 2", active)
		}
		if _, _, _, active := p.counted("web", 1); active != 4 {
			t.Errorf("later reading: live flows = %d, want 4 because none is known to be idle", active)
		}
		p.k.SetConnections(table)
		conns, err := dataplane.Connections(t.Context(), p, dataplane.ConnectionQuery{})
		idle := slices.DeleteFunc(conns, func(c dataplane.Connection) bool { return c.State != dataplane.Idle })
		if err != nil || len(idle) != 2 {
			t.Errorf("idle flows = %+v, %v; want 2", idle, err)
		}
		if err := p.Close(t.Context(), true); err != nil {
			t.Error(err)
		}
	})
}
