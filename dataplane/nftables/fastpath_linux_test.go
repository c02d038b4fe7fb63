package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/host"
	"vipd/dataplane/internal/conntrack"
	"vipd/test/fake"
	"vipd/test/lab"
	"vipd/test/wait"
)

// fastRig is a network in which vipd runs on a gateway with a fast path, between a client and two
// servers.
type fastRig struct {
	*testing.T
	client  *lab.NS
	server  *lab.NS
	lab     *lab.Lab
	host    *host.Host
	d       *Dataplane
	applied snap.Map[balancer.Key, *balancer.Frontend]
}

func newFastRig(t *testing.T, devices ...string) *fastRig {
	t.Helper()
	r := newFastNetwork(t)
	r.start(false, devices...)
	r.apply("10.96.0.10:80/tcp", "10.96.0.10:80/udp", "[fd00:96::10]:80/tcp", "[fd00:96::10]:80/udp")
	return r
}

// newFastNetwork creates the network. vipd does not run yet.
func newFastNetwork(t *testing.T) *fastRig {
	t.Helper()
	l := lab.New(t)
	r := &fastRig{T: t, lab: l, client: l.Add("client")}
	l.Link(l.Host(), r.client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	r.client.Default("10.1.0.1", "fd01::1")
	s := l.Add("s1")
	l.Link(l.Host(), s, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	s.Default("10.2.0.1", "fd02::1")
	r.server = s
	for _, network := range []string{"tcp", "udp"} {
		for _, at := range []string{"10.2.0.2:8080", "[fd02::2]:8080"} {
			s.Echo(network, "s1", netip.MustParseAddrPort(at))
		}
	}
	l.Host().Sysctl("net.ipv6.conf.all.forwarding", "1")
	l.Host().Sysctl("net.netfilter.nf_conntrack_acct", "0")
	return r
}

// start starts vipd without services. The fast path uses these devices.
func (r *fastRig) start(hardware bool, devices ...string) {
	r.Helper()
	o := options()
	o.FastPath, o.FastPathHardware = devices, hardware
	h, err := host.New(o)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = h.Close() })
	r.Cleanup(func() { cleanup(r) })
	d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: guard.MarkBits(o.MasqueradeBit)})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = d.Close(context.Background(), false) })
	r.host, r.d = h, d
}

// apply makes vipd serve only the frontends with these keys.
func (r *fastRig) apply(keys ...string) {
	r.Helper()
	var want balancer.Desired
	for _, key := range keys {
		f := fake.Frontend(key, func(f *balancer.Frontend) {
			f.Backends[0].Addr = netip.AddrPortFrom(netip.MustParseAddr("10.2.0.2"), 8000+f.Key.Port.First())
			if f.Addr.Is6() {
				f.Backends[0].Addr = netip.AddrPortFrom(netip.MustParseAddr("fd02::2"), 8000+f.Key.Port.First())
			}
		})
		want.Frontends = want.Frontends.Set(f.Key, f)
		want.Addresses = want.Addresses.Set(f.Addr, want.Addresses.At(f.Addr)+1)
	}
	var batch []dataplane.Change
	for k, c := range snap.Diff(r.applied, want.Frontends) {
		batch = append(batch, dataplane.Change{Key: k, Old: c.Old, New: c.New})
	}
	r.applied = want.Frontends
	err := r.host.Prepare(r.Context(), want)
	if err == nil {
		err = r.d.Apply(r.Context(), batch)
	}
	if err = errors.Join(err, r.host.Finish(r.Context(), want.Frontends)); err != nil {
		r.Fatal(err)
	}
}

// open opens a connection. It exchanges enough packets for the connection to enter the fast path.
func (r *fastRig) open(network, to string) net.Conn {
	r.Helper()
	c, err := r.client.Dial(r.Context(), network, to)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	if answer, err := lab.Ask(c); err != nil || answer.Server != "s1" || answer.Client.String() != c.LocalAddr().String() {
		r.Fatalf("answer = %+v, %v; want an answer from s1, which must see the client's address", answer, err)
	}
	r.exchange(c, 10)
	return c
}

// exchange sends bytes to the server and receives its reply, repeatedly.
func (r *fastRig) exchange(c net.Conn, times int) {
	r.Helper()
	for range times {
		if err := echo(c); err != nil {
			r.Fatalf("exchange with s1: error = %v, want nil", err)
		}
	}
}

func echo(c net.Conn) error {
	buffer := make([]byte, 1000)
	if err := c.SetDeadline(time.Now().Add(wait.Bound(5 * time.Second))); err != nil {
		return err
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := c.Read(buffer)
	return err
}

// flow returns the conntrack flow of a client's connection.
func (r *fastRig) flow(c net.Conn) (flow conntrack.Flow) {
	r.Helper()
	conn, err := conntrack.Open()
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	err = conn.Each(r.Context(), conntrack.Filter{}, func(f *conntrack.Flow) error {
		if f.Client().String() == c.LocalAddr().String() {
			flow = *f
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	return flow
}

// checkFast waits until the flowtable forwards the connection or, if want is false, until it no
// longer does. It keeps exchanging packets, because only a packet can add the connection to the
// flowtable.
func (r *fastRig) checkFast(c net.Conn, want bool) {
	r.Helper()
	lab.Eventually(r, time.Second, "the connection's path", func() error {
		r.exchange(c, 1)
		if fast := r.flow(c).Status.Has(conntrack.Offloaded); fast != want {
			return errors.New("offloaded is not as wanted")
		}
		return nil
	})
}

// TestFastPathWithoutFlowtables configures a fast path on a kernel without flowtables. vipd must
// report a problem for each family, and must serve clients without the fast path.
func TestFastPathWithoutFlowtables(t *testing.T) {
	lab.Require(t)
	r := newFastRig(t, "auto")
	r.exchange(r.open("tcp", "10.96.0.10:80"), 10)
	r.exchange(r.open("udp", "[fd00:96::10]:80"), 10)
	problems := r.host.Problems()
	if len(problems) == 0 {
		t.Skip("needs a kernel without flowtables")
	}
	for _, p := range problems {
		if len(problems) != 2 || p.Field != "fast_path" || !strings.Contains(p.Text, "the kernel has no flowtables") {
			t.Errorf("problems = %v, want one about a missing kernel feature for each family", problems)
		}
	}
	if reason, err := r.host.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("Intact = %s, %v; want no reason", reason, err)
	}
}

// TestIPVSFastPath opens connections on a gateway with a fast path. After a connection's first
// packets, the flowtable must forward it. vipd must also list, count and end this connection.
func TestIPVSFastPath(t *testing.T) {
	lab.NeedIPVS(t) // the emulated guest that has IPVS also has flowtables
	r := newFastRig(t, "client", "s1", "spare")
	if problems := r.host.Problems(); len(problems) != 1 || !strings.HasSuffix(problems[0].Text, "do not exist: spare") {
		r.Fatalf("problems = %v, want one about a missing device", problems)
	}
	for _, vip := range []string{"10.96.0.10:80", "[fd00:96::10]:80"} {
		for _, network := range []string{"tcp", "udp"} {
			t.Run(network+" "+vip, func(t *testing.T) {
				r := *r
				r.T = t
				r.checkListed(network, vip)
			})
		}
	}
	t.Run("devices", r.checkDevices)
	t.Run("end", r.checkEnd)
}

func (r *fastRig) checkListed(network, vip string) {
	c := r.open(network, vip)
	r.checkFast(c, true)
	before := r.connection(c)
	r.exchange(c, 50)
	after := r.connection(c)
	if network == "tcp" && after.State != "established" || after.State == dataplane.Idle || after.State == "" {
		r.Errorf("connection = %+v, want an established TCP connection or a UDP flow that is not idle", after)
	}
	if after.In <= before.In || after.Out <= before.Out {
		r.Errorf("bytes from the client, to the client = %d, %d; want more than %d, %d", after.In, after.Out, before.In, before.Out)
	}
	lab.Eventually(r, 5*time.Second, "the counters", func() error {
		all := r.d.Counters()
		if len(all) != 1 || all[0].In < after.In || all[0].Out < after.Out {
			return fmt.Errorf("counters = %+v, want at least the connection's bytes", all)
		}
		return nil
	})
	n, err := r.d.Kill(r.Context(), dataplane.ConnectionQuery{Frontend: after.Frontend, Client: after.Client})
	if n != 1 || err != nil {
		r.Fatalf("Kill = %d, %v; want 1 connection", n, err)
	}
	if err := echo(c); err == nil && network == "tcp" {
		r.Errorf("killed connection still works, want a reset")
	}
}

func (r *fastRig) connection(c net.Conn) (found dataplane.Connection) {
	r.Helper()
	err := r.d.Connections(r.Context(), dataplane.ConnectionQuery{}, func(x *dataplane.Connection) error {
		if x.Client.String() == c.LocalAddr().String() {
			found = *x
		}
		return nil
	})
	if err != nil || !found.Client.IsValid() {
		r.Fatalf("connection in the list = %+v, %v; want the connection", found, err)
	}
	return found
}

// checkDevices renames and removes devices while a connection is open. The connection must
// continue. While the flowtable has both devices, the connection must use the fast path.
func (r *fastRig) checkDevices(t *testing.T) {
	x := *r
	x.T = t
	c := x.open("tcp", "10.96.0.10:80")
	x.checkFast(c, true)
	ip := func(args ...string) { x.lab.Host().For(t).Exec("ip", args...) }
	has := func(want ...string) {
		t.Helper()
		if reason, err := x.host.Intact(t.Context()); reason != "" || err != nil {
			t.Fatalf("Intact = %s, %v; want no reason", reason, err)
		}
		listing := x.devices()
		for _, name := range []string{"client", "s1", "spare", "other"} {
			if strings.Contains(listing, name) != slices.Contains(want, name) {
				t.Fatalf("devices = %s, want %v", listing, want)
			}
		}
	}
	ip("link", "add", "spare", "type", "veth", "peer", "name", "peer")
	has("client", "s1", "spare")
	x.checkFast(c, true)
	ip("link", "set", "spare", "name", "other")
	has("client", "s1")
	ip("link", "set", "other", "name", "spare")
	has("client", "s1", "spare")
	ip("link", "del", "spare")
	has("client", "s1")
	x.checkFast(c, true)

	ip("link", "set", "s1", "down")
	ip("link", "set", "s1", "name", "other")
	has("client")
	ip("link", "set", "other", "name", "s1")
	ip("link", "set", "s1", "up")
	has("client", "s1")
	x.checkFast(c, true)
}

// devices returns the devices of the IPv4 flowtable, as nft lists them.
func (r *fastRig) devices() string {
	return r.lab.Host().Exec("nft", "list", "flowtable", "ip", "vipd-guard", "fast")
}

// checkEnd switches to a mode without a fast path, and then runs Cleanup. Neither may end an open
// connection. Cleanup must restore the sysctl.
func (r *fastRig) checkEnd(t *testing.T) {
	x := *r
	x.T = t
	c := x.open("tcp", "10.96.0.10:80")
	x.checkFast(c, true)
	x.host.SetMode(dataplane.Needs{Forward: true, LocalIn: true})
	x.host.Resync(true)
	if err := x.host.Prepare(t.Context(), balancer.Desired{Frontends: x.applied}); err != nil {
		t.Fatal(err)
	}
	if listing := x.lab.Host().Exec("nft", "list", "table", "ip", "vipd-guard"); strings.Contains(listing, "flow") {
		t.Errorf("table = %s, want no flowtable in a mode without a fast path", listing)
	}
	if problems := x.host.Problems(); len(problems) != 1 || problems[0].Field != "fast_path" {
		t.Errorf("problems = %v, want one that says that fast_path has no effect", problems)
	}
	x.exchange(c, 3)
	steps, err := host.Cleanup(t.Context(), options(), false)
	if err != nil {
		t.Fatal(err)
	}
	if acct := x.lab.Host().ReadSysctl("net.netfilter.nf_conntrack_acct"); acct != "0" {
		t.Errorf("after Cleanup: nf_conntrack_acct = %s, want 0; steps = %q", acct, steps)
	}
}

// TestIPVSFastPathHardware configures hardware offload, which veth devices do not support. vipd
// must report each device with the driver's error, and must serve clients without the fast path. No
// connection may be listed as offloaded.
func TestIPVSFastPathHardware(t *testing.T) {
	lab.NeedIPVS(t)
	r := newFastNetwork(t)
	r.start(true, "client", "s1")
	r.apply("10.96.0.10:80/tcp")
	c := r.open("tcp", "10.96.0.10:80")
	r.exchange(c, 20)
	if r.flow(c).Status.Has(conntrack.Offloaded) {
		t.Error("a connection through devices that refuse offload is listed as offloaded")
	}
	problems := r.host.Problems()
	for i, name := range []string{"client", "s1"} {
		if len(problems) != 2 || !strings.Contains(problems[i].Text, "fast_path has no effect on "+name) || !strings.Contains(problems[i].Text, "not supported") {
			t.Errorf("problems = %v, want the driver's error for client and s1", problems)
		}
	}
}

// maxFastShare limits the cost of a packet in the fast path, as a fraction of its cost without the
// fast path. Both costs exclude the cost of routing alone.
const maxFastShare = 0.45

// TestIPVSFastPathCost sends packets of an established flow in three ways: routed without
// netfilter, translated by vipd, and in the fast path. It compares the cost per packet. In the
// emulated guest, time is proportional to the number of executed instructions.
func TestIPVSFastPathCost(t *testing.T) {
	lab.NeedIPVS(t)
	if !wait.Emulated() {
		t.Skip("needs an emulated guest, in which time is the number of instructions")
	}
	measured := func(name string, vipd bool, devices ...string) (cost float64) {
		t.Run(name, func(t *testing.T) {
			r, to := newFastNetwork(t), "10.2.0.2:8081"
			sink, err := r.server.ListenPacket("udp", to)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sink.Close() })
			if vipd {
				to = "10.96.0.10:81"
				r.start(false, devices...)
				r.apply(to + "/udp")
			} else {
				r.lab.Host().Sysctl("net.ipv4.ip_forward", "1")
			}
			cost = r.cost(to, sink)
		})
		return cost
	}
	routed, translated, fast := measured("routed", false), measured("translated", true), measured("fast", true, "auto")
	t.Logf("instructions per packet with the sender: routed %.0f, translated %.0f, in the fast path %.0f", routed, translated, fast)
	if most := routed + maxFastShare*(translated-routed); fast > most {
		t.Errorf("cost of a packet in the fast path = %.0f ns, want at most %.0f ns", fast, most)
	}
}

// cost returns a flow's time per packet in nanoseconds. sink replies to the flow's first packets.
// It does not read the measured packets, so their cost does not include the receiver.
func (r *fastRig) cost(to string, sink net.PacketConn) float64 {
	r.Helper()
	c, err := r.client.Dial(r.Context(), "udp", to)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	buffer := make([]byte, 64)
	for range 20 {
		if _, err := c.Write(buffer[:8]); err != nil {
			r.Fatal(err)
		}
		_, from, err := sink.ReadFrom(buffer)
		if err != nil {
			r.Fatal(err)
		}
		if _, err := sink.WriteTo(buffer[:8], from); err != nil {
			r.Fatal(err)
		}
		if _, err := c.Read(buffer); err != nil {
			r.Fatal(err)
		}
	}
	best := time.Duration(1<<63 - 1)
	const packets = 2000
	for range 5 {
		began := time.Now()
		for range packets {
			if _, err := c.Write(buffer[:8]); err != nil {
				r.Fatal(err)
			}
		}
		best = min(best, time.Since(began))
	}
	return float64(best.Nanoseconds()) / packets
}
