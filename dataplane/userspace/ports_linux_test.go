package userspace

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

// TestFlowsLeavePortsToOthers: there are few, and more clients; and a backend is not at fault where there is none.
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
	told := listenTo(d)
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
	wait.For(t, time.Second, "the flow that has no port", func() bool { return d.warned.Load() != 0 || len(told.of(at)) > 0 })
	for _, c := range others {
		_ = c.Close()
	}
	for i := range 2 * ports {
		if _, err := askUDPFor(client(1+i), "x", wait.Bound(time.Second)); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	if c, err := net.ListenUDP("udp4", nil); err != nil {
		t.Errorf("nothing is left to others: %v", err)
	} else {
		_ = c.Close()
	}
	if all := told.of(at); len(all) > 0 {
		t.Errorf("told of a backend that is not at fault: %v", all)
	}
}
