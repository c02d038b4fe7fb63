package userspace

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// rangeAt returns a frontend with a port range. open lists the parts of the range that belong to
// the frontend; the default is the whole range. backend contains the port that corresponds to the
// first port of the range.
func rangeAt(key string, backend netip.AddrPort, open ...balancer.PortRange) *balancer.Frontend {
	f := frontendAt(key, backend)
	f.Service = balancer.Name("range-" + f.Key.Port.String())
	if f.Open = open; len(open) == 0 {
		f.Open = []balancer.PortRange{f.Key.Port}
	}
	return f
}

// askAt sends a request to a port of 10.96.0.1, from a fixed port on the remote host. It returns
// the port on which the server received the request.
func (w *twoHosts) askAt(t *testing.T, network string, from, port uint16) (uint16, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	local := netip.AddrPortFrom(netip.MustParseAddr("10.9.0.2"), from)
	c, err := w.remote.DialFrom(ctx, network, local, fmt.Sprintf("10.96.0.1:%d", port))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // makes the port available again immediately
	}
	a, err := lab.AskWithin(c, wait.Patience)
	return a.Local.Port(), err
}

// wantPorts sends requests to the VIP ports in want, and compares the ports on which the backend
// receives them. Zero means that the client must be refused. All UDP requests have the same source
// port.
func (w *twoHosts) wantPorts(t *testing.T, step string, want map[uint16]uint16) {
	t.Helper()
	for port, backend := range want {
		for network, from := range map[string]uint16{"tcp": 0, "udp": 40_000} {
			got, err := w.askAt(t, network, from, port)
			if got != backend || (err == nil) != (backend != 0) {
				t.Errorf("%s: backend port for %s port %d = %d, %v; want %d", step, network, port, got, err, backend)
			}
		}
	}
}

// TestRanges serves port ranges, a single port inside a range, and all other ports. Each port must
// belong to the narrowest frontend that contains it, even after changes.
func TestRanges(t *testing.T) {
	for _, intercept := range []Interception{Redirect, Bind} {
		t.Run(string(intercept), func(t *testing.T) {
			w := newTwoHosts(t)
			for _, network := range []string{"tcp", "udp"} {
				for _, port := range []uint16{7000, 7005, 7009, 8100, 8109, 6000, 60_000} {
					w.remote.Echo(network, "s", netip.AddrPortFrom(netip.MustParseAddr("10.9.0.2"), port))
				}
			}
			d := start(t, Options{Intercept: intercept})
			if _, err := d.Observe(t.Context()); err != nil {
				t.Fatal(err)
			}
			at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("10.9.0.2"), port) }
			var ranged, divided, single, all, allOpen []*balancer.Frontend
			for _, proto := range []string{"/tcp", "/udp"} {
				ranged = append(ranged, rangeAt("10.96.0.1:7000-7009"+proto, at(7000)), rangeAt("10.96.0.1:7100-7109"+proto, at(8100)))
				divided = append(divided, rangeAt("10.96.0.1:7000-7009"+proto, at(7000), balancer.NewPortRange(7000, 7004), balancer.NewPortRange(7006, 7009)))
				single = append(single, frontendAt("10.96.0.1:7005"+proto, at(6000)))
				allOpen = append(allOpen, rangeAt("10.96.0.1:all"+proto, at(1), balancer.NewPortRange(1, 6999), balancer.NewPortRange(7010, 65535)))
				all = append(all, rangeAt("10.96.0.1:all"+proto, at(1)))
			}
			d.apply(ranged...)
			w.wantPorts(t, "ranges", map[uint16]uint16{7000: 7000, 7005: 7005, 7009: 7009, 7100: 8100, 7109: 8109, 7010: 0})
			d.apply(append(single, divided...)...)
			w.wantPorts(t, "a single port inside", map[uint16]uint16{7000: 7000, 7005: 6000, 7009: 7009, 7100: 8100})
			if intercept == Redirect {
				d.apply(allOpen...)
				w.wantPorts(t, "all around", map[uint16]uint16{7000: 7000, 7005: 6000, 7009: 7009, 60_000: 60_000})
				var batch []dataplane.Change
				for i := range all {
					batch = append(batch, dataplane.Change{Key: all[i].Key, New: all[i]}, dataplane.Change{Key: divided[i].Key})
				}
				if err := d.Apply(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
				w.wantPorts(t, "without the range", map[uint16]uint16{7005: 6000, 7009: 7009, 60_000: 60_000})
				d.remove(all[0].Key, all[1].Key)
				d.apply(divided...)
			}
			batch := []dataplane.Change{{Key: single[0].Key}, {Key: single[1].Key}}
			for _, f := range ranged {
				batch = append([]dataplane.Change{{Key: f.Key, New: f}}, batch...)
			}
			if err := d.Apply(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			w.wantPorts(t, "the range again", map[uint16]uint16{7005: 7005, 7009: 7009})
			if reason, err := d.Intact(t.Context()); reason != "" || err != nil {
				t.Errorf("Intact = %q, %v; want no reason", reason, err)
			}
			seen, err := d.Observe(t.Context())
			if err != nil || len(seen.Damage) > 0 || seen.Digests[ranged[0].Key] != d.Digest(ranged[0]) {
				t.Errorf("Observe = %+v, %v; want the applied range", seen, err)
			}
			for _, f := range ranged {
				d.remove(f.Key)
			}
			w.wantPorts(t, "nothing", map[uint16]uint16{7000: 0, 7109: 0})
		})
	}
}

// TestRangeHandOver hands over connections and flows to ports of a range. They must continue on the
// same ports, and new clients must be served.
func TestRangeHandOver(t *testing.T) {
	for _, intercept := range []Interception{Redirect, Bind} {
		t.Run(string(intercept), func(t *testing.T) {
			w := newTwoHosts(t)
			for _, network := range []string{"tcp", "udp"} {
				for _, port := range []uint16{7000, 7009} {
					w.remote.Echo(network, "s", netip.AddrPortFrom(netip.MustParseAddr("10.9.0.2"), port))
				}
			}
			before, err := New(Options{Intercept: intercept}) // start would report the netlink sockets, which are closed only when a process exits
			if err != nil {
				t.Fatal(err)
			}
			d := &rig{before, t}
			backend := netip.MustParseAddrPort("10.9.0.2:7000")
			frontends := []*balancer.Frontend{rangeAt("10.96.0.1:7000-7009/tcp", backend), rangeAt("10.96.0.1:7000-7009/udp", backend)}
			d.apply(frontends...)
			var open []net.Conn
			for _, network := range []string{"tcp", "udp"} {
				for _, port := range []string{"7000", "7009"} {
					c, err := w.remote.Dial(t.Context(), network, "10.96.0.1:"+port)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Close() })
					if a, err := lab.Ask(c); err != nil || fmt.Sprint(a.Local.Port()) != port {
						t.Fatalf("backend address for %s port %s = %s, %v; want the same port", network, port, a.Local, err)
					}
					open = append(open, c)
				}
			}
			next := start(t, Options{Intercept: intercept})
			next.Inherit(d.handedOver())
			next.apply(frontends...)
			next.Discard(false)
			if reason, err := next.Intact(t.Context()); reason != "" || err != nil {
				t.Fatal(reason, err)
			}
			for _, c := range open {
				wantEcho(t, c)
			}
			killed := dataplane.ConnectionQuery{Frontend: balancer.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 7009, Proto: balancer.TCP}}
			conns, err := dataplane.Connections(t.Context(), next, dataplane.ConnectionQuery{Service: frontends[0].Service})
			if err != nil || len(conns) != 4 {
				t.Errorf("connections to the range = %v, %v; want 4", conns, err)
			}
			if n, err := next.Kill(t.Context(), killed); n != 1 || err != nil {
				t.Errorf("killed connections to port 7009 = %d, %v; want 1", n, err)
			}
			w.wantPorts(t, "after the handover", map[uint16]uint16{7000: 7000, 7009: 7009})
		})
	}
}

// TestRefusedPortOfRange connects to ports of a range at which the backend does not listen. The
// clients must be refused. The backend must not rest, and no failure may be reported.
func TestRefusedPortOfRange(t *testing.T) {
	w := newTwoHosts(t)
	w.remote.Echo("tcp", "s", netip.MustParseAddrPort("10.9.0.2:7000"))
	w.remote.Echo("udp", "s", netip.MustParseAddrPort("10.9.0.2:7000"))
	d := redirecting(t)
	d.ReportDials(func(to balancer.Target, err error) { t.Errorf("report about %s = %v, want no report", to, err) })
	backend := netip.MustParseAddrPort("10.9.0.2:7000")
	tcp, udp := rangeAt("10.96.0.1:7000-7009/tcp", backend), rangeAt("10.96.0.1:7000-7009/udp", backend)
	d.apply(tcp, udp)
	if _, err := w.askAt(t, "tcp", 0, 7001); err == nil {
		t.Error("tcp port 7001: error = nil, want a reset")
	}
	c, err := w.remote.Dial(t.Context(), "udp", "10.96.0.1:7001")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if a, err := lab.AskWithin(c, 100*time.Millisecond); err == nil {
		t.Errorf("udp port 7001: answer from %s, want no answer", a.Local)
	}
	for _, f := range []*balancer.Frontend{tcp, udp} {
		if b := d.frontends[f.Key].conf.Load().backends[0]; b.restUntil.Load() != 0 || b.failures.Load() != 0 {
			t.Errorf("%s: the backend rests until %d after %d failures, want neither", f.Key, b.restUntil.Load(), b.failures.Load())
		}
	}
	w.wantPorts(t, "the open port", map[uint16]uint16{7000: 7000})
}

// TestBoundRangeLimit applies a range of 1,024 ports with the bind interception. Capabilities must
// report this as the maximum, and every port must have a socket.
func TestBoundRangeLimit(t *testing.T) {
	d := start(t, Options{Intercept: Bind})
	if got := d.Capabilities().MaxPorts; got != maxBoundPorts {
		t.Errorf("MaxPorts = %d, want %d", got, maxBoundPorts)
	}
	d.apply(rangeAt("127.77.5.1:20000-21023/tcp", netip.MustParseAddrPort("127.0.0.1:20000")))
	if n := len(d.frontends[balancer.Key{Addr: netip.MustParseAddr("127.77.5.1"), Port: balancer.NewPortRange(20000, 21023), Proto: balancer.TCP}].ports); n != maxBoundPorts {
		t.Errorf("listening ports = %d, want %d", n, maxBoundPorts)
	}
}
