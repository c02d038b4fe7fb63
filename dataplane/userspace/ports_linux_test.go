package userspace

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

// TestFlowsLeavePortsToOthers serves more UDP clients than there are local ports. Flows must leave
// some local ports to other programs. No backend may be reported as failing.
func TestFlowsLeavePortsToOthers(t *testing.T) {
	lab.New(t)
	const ports, file = 40, "/proc/sys/net/ipv4/ip_local_port_range"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(file, old, 0) })
	if err := os.WriteFile(file, []byte("20000 20039"), 0); err != nil {
		t.Fatal(err)
	}
	at := udpServer(t, "127.0.0.1:7000", "a")
	d := start(t, Options{})
	reports := collectReports(d)
	f := frontendAt("127.77.9.8:9000/udp", at)
	d.apply(f)
	client := func(i int) *net.UDPConn {
		from := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(30000+i))
		c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(f.AddrPort()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var others []*net.UDPConn
	for c, err := net.ListenUDP("udp4", nil); err == nil; c, err = net.ListenUDP("udp4", nil) {
		others = append(others, c)
	}
	_, _ = client(0).Write([]byte("x"))
	wait.For(t, time.Second, "the flow that has no port", func() bool { return d.warned.Load() != 0 || len(reports.of(at)) > 0 })
	for _, c := range others {
		_ = c.Close()
	}
	for i := range 2 * ports {
		if _, err := askUDPFor(client(1+i), "x", wait.Bound(time.Second)); err != nil {
			t.Fatalf("client %d: error = %v, want nil", i, err)
		}
	}
	if c, err := net.ListenUDP("udp4", nil); err != nil {
		t.Errorf("another program binds a port: error = %v, want nil", err)
	} else {
		_ = c.Close()
	}
	if all := reports.of(at); len(all) > 0 {
		t.Errorf("reports about the backend = %v, want none because it is not at fault", all)
	}
}

// TestLocalPortsUsedUp opens more connections to an endpoint than there are local ports. The
// shortage must be reported and counted, but not as the endpoint's failure.
func TestLocalPortsUsedUp(t *testing.T) {
	lab.New(t)
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(file, old, 0) })
	d := start(t, Options{})
	reports := collectReports(d)
	at := serveAt(t, "127.0.0.1:7000", named("a")).addr
	f := frontendAt("127.77.9.8:9000/tcp", at)
	d.apply(f)
	if got := d.lacks(); got != "" {
		t.Fatalf("lacks() before the first client = %q, want an empty text", got)
	}
	if err := os.WriteFile(file, []byte("20000 20003"), 0); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 30000 + i}
		c, err := net.DialTCP("tcp4", from, net.TCPAddrFromAddrPort(f.AddrPort()))
		if err == nil { // otherwise, the connection was reset immediately
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	wait.For(t, time.Second, "the shortage of ports", func() bool { return strings.Contains(d.lacks(), "no local port is left") })
	wait.For(t, time.Second, "a counted failure", func() bool { return d.Counters()[0].Failures > 0 })
	if all := reports.of(at); len(all) > 0 {
		t.Errorf("reported failures of the endpoint = %v, want none", all)
	}
}
