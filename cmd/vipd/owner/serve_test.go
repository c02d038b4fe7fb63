package owner

import (
	"net"
	"net/http"
	"net/netip"
	"testing"
)

// TestClosedConnectionOfDaemon closes the connection over which vipd reports to vipd owner. If VIPs
// are not served without vipd, there must then be a reason why this host can't serve them. A
// repeated report must be decoded only once.
func TestClosedConnectionOfDaemon(t *testing.T) {
	o := New(Options{}, "")
	first, second := net.Conn(&net.TCPConn{}), net.Conn(&net.UnixConn{})
	vip := netip.MustParseAddr("10.9.0.100")
	say := func(text string, from net.Conn) {
		t.Helper()
		if err := o.daemon.receive([]byte(text), from); err != nil {
			t.Fatal(err)
		}
	}
	cannot := func(want string) {
		t.Helper()
		if got := o.daemon.current().VIPs[vip].Cannot; got != want {
			t.Errorf("reason = %q, want %q", got, want)
		}
	}
	const short, long = `{"vips": {"10.9.0.100": {}}, "grace": 500000000}`, `{"vips": {"10.9.0.100": {}}, "grace": 10000000000}`
	say(short, first)
	cannot("")
	told := o.daemon.current()
	say(short, second)
	if o.daemon.current() != told {
		t.Error("repeated report was decoded again = true, want false")
	}
	o.daemon.closed(first, http.StateClosed) // the connection of a vipd that has handed over
	cannot("")
	o.daemon.closed(second, http.StateIdle)
	cannot("")
	o.daemon.closed(second, http.StateClosed)
	cannot("vipd has stopped reporting")
	say(short, first)
	cannot("")
	say(long, first)
	o.daemon.closed(first, http.StateClosed)
	cannot("")
	if err := o.daemon.receive([]byte("{"), first); err == nil {
		t.Error("half a report: receive = nil, want an error")
	}
}
