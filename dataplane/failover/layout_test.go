package failover

import (
	"fmt"
	"net/netip"
	"testing"

	"vipd/balancer/failover"
)

// TestLayoutKeepsIndexes changes some of a host's addresses. The other addresses must retain their
// indexes. The address from which the host connects to etcd must also have an index.
func TestLayoutKeepsIndexes(t *testing.T) {
	network := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	at := func(lan string, others ...string) (l Layout) {
		l.At, l.On = []failover.Address{{Addr: netip.MustParseAddr(lan), Networks: network}}, []string{"lan"}
		for _, a := range others {
			l.At, l.On = append(l.At, failover.Address{Addr: netip.MustParseAddr(a)}), append(l.On, "")
		}
		return l
	}
	before := at("10.9.0.1", "10.7.0.1", "10.8.0.1")
	for _, c := range []struct{ next, want Layout }{
		{at("10.9.0.2", "10.7.0.1", "10.8.0.1"), at("10.9.0.2", "10.7.0.1", "10.8.0.1")},
		{at("10.9.0.1", "10.7.0.1", "10.8.0.2"), at("10.9.0.1", "10.7.0.1", "10.8.0.2")},
		{at("10.9.0.1", "10.7.0.1"), before},
		{at("10.9.0.1", "10.7.0.1", "10.8.0.1", "10.6.0.1"), at("10.9.0.1", "10.7.0.1", "10.8.0.1", "10.6.0.1")},
	} {
		if got := before.grow(c.next); fmt.Sprint(got.At, got.On) != fmt.Sprint(c.want.At, c.want.On) {
			t.Errorf("grow(%v) = %v on %q, want %v on %q", c.next.At, got.At, got.On, c.want.At, c.want.On)
		}
	}
}
