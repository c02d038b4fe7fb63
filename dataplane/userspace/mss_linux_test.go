package userspace

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// TestAnnouncesSmallerSegments changes mss while a socket is open. New clients must then send
// segments of at most mss bytes.
func TestAnnouncesSmallerSegments(t *testing.T) {
	good := serveAt(t, "127.0.0.1:0", named("good"))
	d := start(t, Options{})
	f := frontendAt("127.77.0.3:9000", good.addr)
	for _, mss := range []int{0, 1000, 40000, 0} {
		d.apply(with(f, func(f *balancer.Frontend) { f.MSS = mss }))
		c, err := net.Dial("tcp", f.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }); err != nil {
			t.Fatal(err)
		}
		if mss > 0 && got > mss || mss == 0 && got < 10000 {
			t.Errorf("client's segment size = %d, want at most mss = %d, or a large size if mss is 0", got, mss)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
