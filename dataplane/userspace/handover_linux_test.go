package userspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/handover"
	"vipd/test/fake"
	"vipd/test/wait"

	"golang.org/x/sys/unix"
)

// succeed hands over to a new dataplane, which simulates the next process, and applies frontends to
// it.
func (r *rig) succeed(frontends ...*balancer.Frontend) *rig {
	r.t.Helper()
	next := r.takenOver()
	next.apply(frontends...)
	next.Discard(false)
	if reason, err := next.Intact(r.t.Context()); reason != "" || err != nil {
		r.t.Fatal(reason, err)
	}
	return next
}

// takenOver hands over to a new dataplane, and returns it before any frontend is applied to it.
func (r *rig) takenOver() *rig {
	r.t.Helper()
	items := r.handedOver()
	next := start(r.t, Options{})
	next.Inherit(items)
	return next
}

// handedOver calls HandOver, and returns the items that the dataplane sent.
func (r *rig) handedOver() []handover.Item {
	r.t.Helper()
	in, out, err := handover.Pair()
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), wait.Patience)
	defer cancel()
	if err := errors.Join(r.HandOver(ctx, out), out.Close()); err != nil {
		r.t.Fatal(err)
	}
	items, err := in.All()
	if err != nil {
		r.t.Fatal(err)
	}
	return items
}

// pattern is an endless stream in which each byte depends on its position.
type pattern struct{ at int }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(p.at) ^ byte(p.at>>8) ^ byte(p.at>>16)
		p.at++
	}
	return len(b), nil
}

// stream sends a pattern to a backend that echoes it, until stop is closed, and checks the echo.
// The client waits for pause between two reads.
func stream(t *testing.T, vip netip.AddrPort, pause time.Duration, stop <-chan struct{}) {
	c := mustConnect(t, vip)
	var sent atomic.Int64
	go func() {
		out, b := &pattern{}, make([]byte, 50_000)
		for {
			select {
			case <-stop:
				_ = c.CloseWrite()
				return
			default:
			}
			_, _ = out.Read(b)
			n, err := c.Write(b)
			sent.Add(int64(n))
			if err != nil {
				t.Errorf("write after %d bytes: error = %v, want nil", sent.Load(), err)
				return
			}
		}
	}()
	want, got, expected := &pattern{}, make([]byte, 30_000), make([]byte, 30_000)
	for {
		n, err := c.Read(got)
		_, _ = want.Read(expected[:n])
		if string(got[:n]) != string(expected[:n]) {
			t.Errorf("received bytes before position %d differ from the sent bytes", want.at)
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) || int64(want.at) != sent.Load() {
				t.Errorf("received bytes = %d, want %d; error afterwards = %v, want EOF", want.at, sent.Load(), err)
			}
			return
		}
		select {
		case <-stop:
		default:
			time.Sleep(pause) // deliberately slow, so bytes wait in buffers and pipes
		}
	}
}

// TestHandOverLosesNothing hands over streams, half-closed connections and connections that wait
// for a backend, while new clients connect. No client may fail or lose data.
func TestHandOverLosesNothing(t *testing.T) {
	echo := serveAt(t, "127.0.0.1:0", func(c net.Conn) { _, _ = io.Copy(c, c) })
	lines := serveAt(t, "127.0.0.1:0", named("one"))
	heard := make(chan string, 1) // receives the data that a half-closed client has sent
	answer := make(chan struct{})
	late := serveAt(t, "127.0.0.1:0", func(c net.Conn) {
		b, _ := io.ReadAll(c)
		heard <- string(b)
		<-answer
		_, _ = c.Write([]byte("bye"))
	})
	bulk, web, half := frontendAt("127.1.0.1:8000/tcp", echo.addr), frontendAt("127.1.0.1:8001/tcp", lines.addr), frontendAt("127.1.0.1:8002/tcp", late.addr)
	all := []*balancer.Frontend{bulk, web, half}
	d := start(t, Options{})
	d.apply(all...)

	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() { stream(t, bulk.AddrPort(), time.Duration(i)*time.Millisecond, stop) })
	}
	var served atomic.Int64
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := askOnce(web.AddrPort(), ""); err != nil {
				t.Errorf("new client after %d other clients: error = %v, want nil", served.Load(), err)
				return
			}
			served.Add(1)
		}
	})
	idle := mustConnect(t, web.AddrPort())
	idle.mustAsk(t)
	closed := mustConnect(t, half.AddrPort())
	if _, err := closed.Write([]byte("all that I say")); err != nil || closed.CloseWrite() != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "all that I say" {
		t.Fatalf("data at the backend = %q, want all data that the client sent", got)
	}
	if list, err := dataplane.Connections(t.Context(), d, dataplane.ConnectionQuery{Client: closed.LocalAddr().(*net.TCPAddr).AddrPort()}); err != nil || len(list) != 1 || list[0].State != "half-closed" {
		t.Errorf("list of connections = %+v, %v; want one in the state half-closed", list, err)
	}
	for range wait.Soak(5, 100) {
		before := served.Load()
		d = d.succeed(all...)
		wait.For(t, wait.Patience, "a new client to be served", func() bool { return served.Load() > before || t.Failed() })
	}
	idle.mustAsk(t)
	close(answer)
	if got, err := io.ReadAll(closed); string(got) != "bye" || err != nil {
		t.Errorf("answer on the half-closed connection = %q, %v; want bye", got, err)
	}
	close(stop)
	running.Wait()
	if got := lines.accepted.Load(); got < served.Load() {
		t.Errorf("served clients = %d, want at most the number of counted connections, %d", served.Load(), got)
	}
}

// TestHandOverKeepsSocketOptions hands over a connection. Both of its sockets must retain their
// options.
func TestHandOverKeepsSocketOptions(t *testing.T) {
	lines := serveAt(t, "127.0.0.1:0", named("one"))
	f := with(frontendAt("127.1.0.9:8000/tcp", lines.addr), func(f *balancer.Frontend) { f.MSS = 1000 })
	d := start(t, Options{})
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	c.mustAsk(t)
	type option struct{ side, level, name, value int }
	want := []option{{clientSide, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}, {serverSide, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}}
	for _, o := range keepAliveOptions {
		want = append(want, option{clientSide, o.level, o.name, o.value}, option{serverSide, o.level, o.name, o.value})
	}
	inLoop := func(do func(l *loop, conn *conn)) {
		conn, done := d.connsOf(f)[0], make(chan struct{})
		conn.loop.send(func(l *loop) { do(l, conn); close(done) })
		<-done
	}
	inLoop(func(l *loop, conn *conn) { l.keep(conn) }) // enables keepalives, as a timer does after keepAfter
	d = d.succeed(f)
	c.mustAsk(t)
	inLoop(func(_ *loop, conn *conn) {
		for _, o := range want {
			if got, err := unix.GetsockoptInt(conn.sides[o.side].fd, o.level, o.name); got != o.value || err != nil {
				t.Errorf("socket option %d of level %d on side %d = %d, %v; want %d", o.name, o.level, o.side, got, err, o.value)
			}
		}
		for side := range conn.sides {
			if n, err := unix.GetsockoptInt(conn.sides[side].fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG); n > 1000 || err != nil {
				t.Errorf("maximum segment size of side %d = %d, %v; want at most 1000", side, n, err)
			}
		}
	})
}

// TestHandOverOfFlows hands over UDP flows. Each flow must retain its backend, and each client must
// receive answers.
func TestHandOverOfFlows(t *testing.T) {
	var backends []netip.AddrPort
	for i := range 3 {
		backends = append(backends, echoPackets(t, fmt.Sprintf("b%d", i)))
	}
	f := frontendAt("127.1.0.2:8000/udp", backends...)
	d := start(t, Options{})
	d.apply(f)
	clients, was := make([]net.Conn, 6), make([]string, 6)
	for i := range clients {
		c, err := net.Dial("udp", f.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		clients[i], was[i] = c, askPacket(t, c)
	}
	for range 3 {
		d = d.succeed(f)
		for i, c := range clients {
			if got := askPacket(t, c); got != was[i] {
				t.Errorf("client %d after the handover: backend = %s, want %s", i, got, was[i])
			}
		}
	}
	draining := with(f, func(f *balancer.Frontend) {
		for i := range f.Backends {
			f.Backends[i].State = balancer.Draining
		}
	})
	d.apply(draining)
	d.succeed(draining)
	for i, c := range clients {
		if got := askPacket(t, c); got != was[i] {
			t.Errorf("client %d during the drain: backend = %s, want %s", i, got, was[i])
		}
	}
}

// TestHandOverWaitsForFrontends hands over a connection and a flow. Their frontends are applied
// after the first Discard, and both must continue. A connection whose frontend is never applied
// must be reset after adoptTime.
func TestHandOverWaitsForFrontends(t *testing.T) {
	lines := serveAt(t, "127.0.0.1:0", named("one"))
	first, late, never := frontendAt("127.1.0.8:8000/tcp", lines.addr), frontendAt("127.1.0.8:8001/tcp", lines.addr), frontendAt("127.1.0.8:8002/tcp", lines.addr)
	packets := frontendAt("127.1.0.8:8001/udp", echoPackets(t, "b"))
	d := start(t, Options{})
	d.apply(first, late, never, packets)
	waiting, lost := mustConnect(t, late.AddrPort()), mustConnect(t, never.AddrPort())
	waiting.mustAsk(t)
	lost.mustAsk(t)
	c := udpClient(t, packets.AddrPort())
	askPacket(t, c)
	source := func(d *rig) (at string) {
		f := d.frontends[packets.Key]
		f.mu.Lock()
		defer f.mu.Unlock()
		f.flows.each(func(x *flow) { at = x.socket.LocalAddr().String() })
		return at
	}
	was := source(d)
	next := d.takenOver()
	next.apply(first)
	next.Discard(true)
	if reason, err := next.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("Intact = %q, %v; want no reason", reason, err)
	}
	next.apply(late, packets)
	waiting.mustAsk(t)
	askPacket(t, c)
	if got := source(next); got != was {
		t.Errorf("source of the flow after the handover = %s, want %s", got, was)
	}
	if next.waits(time.Now().Add(2 * adoptTime)) {
		t.Error("items wait after adoptTime, want them to be discarded")
	}
	next.inherited.until = time.Now()
	next.Discard(true)
	wantReset(t, lost)
}

// TestFlowHeaderUntilReply sends datagrams before and after a handover. Each datagram must start
// with a PROXY header until the endpoint replies. Later datagrams must not have a header.
func TestFlowHeaderUntilReply(t *testing.T) {
	endpoint, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = endpoint.Close() }()
	f := frontendAt("127.77.9.8:9100/udp", endpoint.LocalAddr().(*net.UDPAddr).AddrPort())
	f.ProxyProtocol = balancer.ProxyProtocolV2
	d := start(t, Options{})
	d.apply(f)
	c := udpClient(t, f.AddrPort())
	header, err := flowHeader(c.LocalAddr().(*net.UDPAddr).AddrPort(), f.AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	var from *net.UDPAddr
	exchange := func(text, want string) {
		t.Helper()
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		_ = endpoint.SetDeadline(time.Now().Add(wait.Patience))
		n, at, err := endpoint.ReadFromUDP(b)
		if err != nil || string(b[:n]) != want {
			t.Fatalf("datagram at the endpoint = %q, error = %v; want %q", b[:n], err, want)
		}
		from = at
	}
	exchange("one", string(header)+"one")
	exchange("two", string(header)+"two")
	d = d.succeed(f)
	exchange("three", string(header)+"three")
	d.frontends[f.Key].flows.each(func(x *flow) { wantMonotonic(t, x.since) })
	if _, err := endpoint.WriteToUDP([]byte("reply"), from); err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(wait.Patience))
	if _, err := c.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	exchange("four", "four")
	d.succeed(f)
	exchange("five", "five")
}

func echoPackets(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(name), from)
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func askPacket(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(wait.Patience))
	if _, err := c.Write([]byte("who?")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// TestHandOverOfRemovedFrontends hands over frontends that the next dataplane does not serve. Their
// connections must be reset on both sides, and their ports must be closed.
func TestHandOverOfRemovedFrontends(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("one"))
	ended := make(chan error, 1)
	echo := serveAt(t, "127.0.0.1:0", func(c net.Conn) {
		_, err := io.Copy(c, c)
		ended <- err
	})
	gone, stays := frontendAt("127.1.0.3:8000/tcp", echo.addr), frontendAt("127.1.0.3:8001/tcp", s.addr)
	closed, closedUDP := frontendAt("127.1.0.3:8002/tcp", s.addr), frontendAt("127.1.0.3:8002/udp", s.addr)
	d := start(t, Options{})
	d.apply(gone, stays, closed, closedUDP)
	lost, kept := mustConnect(t, gone.AddrPort()), mustConnect(t, stays.AddrPort())
	if _, err := lost.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := lost.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	kept.mustAsk(t)
	noBackend := func(f *balancer.Frontend) { f.Backends = nil }
	d.succeed(stays, with(closed, noBackend), with(closedUDP, noBackend))
	kept.mustAsk(t)
	wantReset(t, lost)
	if err := <-ended; !isReset(err) {
		t.Errorf("backend: error = %v, want a reset", err)
	}
	for _, f := range []*balancer.Frontend{gone, closed} {
		if c, err := net.Dial("tcp", f.AddrPort().String()); err == nil {
			_ = c.Close()
			t.Errorf("port of %s is open, want it closed because the frontend is not served", f.Key)
		}
	}
}

// TestHandOverBeforeApply makes a dataplane inherit items, and hand over before any frontend is
// applied to it. It must pass on the inherited items.
func TestHandOverBeforeApply(t *testing.T) {
	a, b := serveAt(t, "127.0.0.1:0", named("a")), serveAt(t, "127.0.0.1:0", named("b"))
	f := with(frontendAt("127.1.0.5:8000/tcp", a.addr, b.addr), func(f *balancer.Frontend) { f.AffinityTimeout = time.Hour })
	g := frontendAt("127.1.0.5:8000/udp", echoPackets(t, "a"), echoPackets(t, "b"))
	d := start(t, Options{})
	d.apply(f, g)
	c, packets := mustConnect(t, f.AddrPort()), udpClient(t, g.AddrPort())
	was, flow := c.mustAsk(t), askPacket(t, packets)
	before := map[string]string{}
	for i := range 8 {
		from := netip.AddrFrom4([4]byte{127, 9, 1, byte(i + 1)}).String()
		name, err := askOnce(f.AddrPort(), from)
		if err != nil {
			t.Fatal(err)
		}
		before[from] = name
	}
	d.takenOver().succeed(f, g)
	if got := c.mustAsk(t); got != was {
		t.Errorf("connection after the handover: backend = %s, want %s", got, was)
	}
	if got := askPacket(t, packets); got != flow {
		t.Errorf("flow after the handover: backend = %s, want %s", got, flow)
	}
	for from, name := range before {
		if got, err := askOnce(f.AddrPort(), from); got != name || err != nil {
			t.Errorf("client %s after the handover: backend = %s, %v; want %s", from, got, err, name)
		}
	}
}

// TestHandOverToAnotherMode hands over to a kernel mode, which can't continue the connections. They
// must be reset, so they do not look complete.
func TestHandOverToAnotherMode(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("one"))
	f := frontendAt("127.1.0.6:8000/tcp", s.addr)
	d := start(t, Options{})
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	c.mustAsk(t)
	dataplane.Inherit(fake.New(fake.NewKernel()), d.handedOver())
	wantReset(t, c)
}

// TestHandOverOfAffinityInQueue hands over the clients' affinity. Some clients connect while no
// process accepts connections. They must reach the same backends as before.
func TestHandOverOfAffinityInQueue(t *testing.T) {
	a, b := serveAt(t, "127.0.0.1:0", named("a")), serveAt(t, "127.0.0.1:0", named("b"))
	f := with(frontendAt("127.1.0.1:8000/tcp", a.addr, b.addr), func(f *balancer.Frontend) { f.AffinityTimeout = time.Hour })
	d := start(t, Options{})
	d.apply(f)
	before := map[string]string{}
	for i := range 16 {
		from := netip.AddrFrom4([4]byte{127, 9, 0, byte(i + 1)}).String()
		name, err := askOnce(f.AddrPort(), from)
		if err != nil {
			t.Fatal(err)
		}
		before[from] = name
	}
	for i := range 100 {
		c, err := connect(f.AddrPort(), netip.AddrFrom4([4]byte{127, 8, 0, byte(i + 1)}).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ask("hello"); err != nil {
			t.Fatal(err)
		}
	}
	items := d.handedOver()
	waiting := map[string]*client{}
	for from := range before {
		c, err := connect(f.AddrPort(), from)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		waiting[from] = c
	}
	next := start(t, Options{})
	next.Inherit(items)
	next.apply(f)
	for from, c := range waiting {
		if name, err := c.ask("hello"); name != before[from] || err != nil {
			t.Errorf("client %s after the handover: backend = %s, %v; want %s", from, name, err, before[from])
		}
	}
}

// TestHandOverDuringMove moves connections from the second loop to the first loop, which was halted
// for a handover. Each connection must stay on the second loop, or reach the first loop before the
// handover. The next dataplane must continue all connections.
func TestHandOverDuringMove(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("one"))
	for i, late := range []bool{false, true} {
		f := frontendAt(fmt.Sprintf("127.1.0.7:%d/tcp", 8000+i), s.addr)
		setLoopCount(t, 2)
		d := start(t, Options{})
		d.apply(f)
		first, second := d.loops.all[0], d.loops.all[1]
		kept, moved := mustConnect(t, f.AddrPort()), make([]*client, 3)
		for i := range moved {
			moved[i] = mustConnect(t, f.AddrPort())
			moved[i].mustAsk(t)
		}
		kept.mustAsk(t)
		conns := d.connsOf(f)[:len(moved)]
		done := make(chan bool)
		first.send(func(l *loop) {
			for _, c := range conns {
				l.move(c, second)
			}
			close(done)
		})
		<-done
		second.send(func(l *loop) { // runs after the connections have arrived
			first.running.Wait() // waits until the first loop has stopped
			if late {            // simulates that the second loop read halting before it was set
				d.loops.halting.Store(false)
			}
			for _, c := range conns {
				if l.move(c, first) != late {
					t.Errorf("second loop moved a connection = %t, want %t", !late, late)
				}
			}
			d.loops.halting.Store(true)
		})
		d.succeed(f)
		kept.mustAsk(t)
		for _, c := range moved {
			c.mustAsk(t)
		}
	}
}

// connsOf returns a frontend's connections in their starting order.
func (r *rig) connsOf(f *balancer.Frontend) (all []*conn) {
	front := r.frontends[f.Key]
	front.mu.Lock()
	defer front.mu.Unlock()
	for c := front.conns.next; c != &front.conns; c = c.next {
		all = append(all, c)
	}
	return all
}

// TestHandOverKeepsHeaders hands over two connections. One has received half of a PROXY header, and
// the other a complete header. The next process must read the missing half, and must know the
// clients of both connections.
func TestHandOverKeepsHeaders(t *testing.T) {
	d := start(t, Options{})
	f := introduced("127.77.9.7:9100", serveAt(t, "127.0.0.1:0", named("a")).addr)
	f.Limits = balancer.ClientLimits{SourceConnections: 1, SourcePrefix: 32}
	d.apply(f)
	half, whole := headerOf(t, balancer.ProxyProtocolV2, "203.0.113.7:7", f.AddrPort()), headerOf(t, balancer.ProxyProtocolV1, "203.0.113.8:8", f.AddrPort())
	waiting, open := greet(t, f.AddrPort(), half[:17]), greet(t, f.AddrPort(), whole)
	open.mustAsk(t)
	clients := func(d *rig) (all []string) {
		err := d.Connections(t.Context(), dataplane.ConnectionQuery{}, func(c *dataplane.Connection) error {
			all = append(all, c.Client.String())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	eventually(t, "both connections", func() error {
		if got := clients(d); len(got) != 2 {
			return fmt.Errorf("connections = %v, want 2", got)
		}
		return nil
	})
	next := d.succeed(f)
	for _, x := range next.connsOf(f) {
		wantMonotonic(t, x.since)
	}
	if _, err := waiting.Write([]byte(half[17:])); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client{waiting, open} {
		if name := c.mustAsk(t); name != "a" {
			t.Errorf("server after the handover = %q, want %q", name, "a")
		}
	}
	if got, want := clients(next), []string{"203.0.113.7:7", "203.0.113.8:8"}; !slices.Equal(got, want) {
		t.Errorf("clients after the handover = %v, want %v", got, want)
	}
	wantReset(t, greet(t, f.AddrPort(), whole)) // the first client still counts towards the limit, so this must be refused
}

// TestHandOverChecksTrust hands over a connection that has received half of a PROXY header. The
// next process does not trust the sender, and must reset the connection immediately.
func TestHandOverChecksTrust(t *testing.T) {
	d := start(t, Options{})
	f := introduced("127.77.9.11:9100", serveAt(t, "127.0.0.1:0", named("a")).addr)
	d.apply(f)
	c := greet(t, f.AddrPort(), "PROXY TC")
	eventually(t, "the connection", func() error {
		if n := len(d.connsOf(f)); n != 1 {
			return fmt.Errorf("connections = %d, want 1", n)
		}
		return nil
	})
	next := d.takenOver()
	next.apply(with(f, func(f *balancer.Frontend) { f.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }))
	_ = c.SetDeadline(time.Now().Add(headerTime / 2))
	wantReset(t, c)
}

func wantMonotonic(t *testing.T, since time.Time) {
	t.Helper()
	if since == since.Round(0) {
		t.Errorf("start of the connection = %s, want a time with a monotonic clock reading", since)
	}
}

// TestUrgentByteBeforeHeader sends a TCP urgent byte, and then a PROXY header in two parts. The
// connection must reach the endpoint.
func TestUrgentByteBeforeHeader(t *testing.T) {
	d := start(t, Options{})
	f := introduced("127.77.9.12:9100", serveAt(t, "127.0.0.1:0", named("a")).addr)
	d.apply(f)
	c := mustConnect(t, f.AddrPort())
	if err := unix.Send(descriptor(c.TCPConn), []byte("!"), unix.MSG_OOB); err != nil {
		t.Fatal(err)
	}
	text := headerOf(t, balancer.ProxyProtocolV1, "203.0.113.7:7", f.AddrPort())
	for _, part := range []string{text[:20], text[20:]} {
		time.Sleep(silence) // waits until vipd has processed the earlier bytes
		if _, err := c.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if name := c.mustAsk(t); name != "a" {
		t.Errorf("answer = %q, want %q", name, "a")
	}
}
