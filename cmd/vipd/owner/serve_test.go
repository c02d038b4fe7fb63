package owner

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"vipd/balancer/failover"
)

// TestGrown: places that change keep their indexes, and the address from which etcd is reached is one, also after it was another.
func TestGrown(t *testing.T) {
	network := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	at := func(lan string, others ...string) (p places) {
		p.at, p.on = []failover.Address{{Addr: netip.MustParseAddr(lan), Networks: network}}, []string{"lan"}
		for _, a := range others {
			p.at, p.on = append(p.at, failover.Address{Addr: netip.MustParseAddr(a)}), append(p.on, "")
		}
		return p
	}
	before := at("10.9.0.1", "10.7.0.1", "10.8.0.1")
	for _, c := range []struct{ next, want places }{
		{at("10.9.0.2", "10.7.0.1", "10.8.0.1"), at("10.9.0.2", "10.7.0.1", "10.8.0.1")},
		{at("10.9.0.1", "10.7.0.1", "10.8.0.2"), at("10.9.0.1", "10.7.0.1", "10.8.0.2")},
		{at("10.9.0.1", "10.7.0.1"), before},
		{at("10.9.0.1", "10.7.0.1", "10.8.0.1", "10.6.0.1"), at("10.9.0.1", "10.7.0.1", "10.8.0.1", "10.6.0.1")},
	} {
		if got := before.grown(c.next); fmt.Sprint(got.at, got.on) != fmt.Sprint(c.want.at, c.want.on) {
			t.Errorf("with %v: got %v on %q, want %v on %q", c.next.at, got.at, got.on, c.want.at, c.want.on)
		}
	}
}

// TestSilence: the end of vipd's connection counts where nothing is served without vipd, and what it says twice is read once.
func TestSilence(t *testing.T) {
	o := New(Options{}, "")
	first, second := net.Conn(&net.TCPConn{}), net.Conn(&net.UnixConn{})
	vip := netip.MustParseAddr("10.9.0.100")
	say := func(text string, from net.Conn) {
		t.Helper()
		if err := o.hear([]byte(text), from); err != nil {
			t.Fatal(err)
		}
	}
	cannot := func(want string) {
		t.Helper()
		if got := o.current().VIPs[vip].Cannot; got != want {
			t.Errorf("the VIP can't be served for %q, want %q", got, want)
		}
	}
	const short, long = `{"vips": {"10.9.0.100": {}}, "grace": 500000000}`, `{"vips": {"10.9.0.100": {}}, "grace": 10000000000}`
	say(short, first)
	cannot("")
	told := o.current()
	say(short, second)
	if o.current() != told {
		t.Error("what was said twice was read twice")
	}
	o.ended(first, http.StateClosed) // of a vipd that has handed over
	cannot("")
	o.ended(second, http.StateIdle)
	cannot("")
	o.ended(second, http.StateClosed)
	cannot("vipd is silent")
	say(short, first)
	cannot("")
	say(long, first)
	o.ended(first, http.StateClosed)
	cannot("")
	if err := o.hear([]byte("{"), first); err == nil {
		t.Error("half a message is taken")
	}
}
