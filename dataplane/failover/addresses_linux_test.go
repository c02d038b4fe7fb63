package failover

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"vipd/test/lab"
)

// TestAddressesOfDevices lists the addresses of all devices. Each address must have its network,
// even on a point-to-point link.
func TestAddressesOfDevices(t *testing.T) {
	l := lab.New(t)
	a, b := l.Add("a"), l.Add("b")
	l.Link(a, b, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	for _, more := range [][]string{{"10.96.0.1/32", "dev", "b"}, {"fd00:96::1/128", "dev", "b", "nodad"}, {"10.9.0.1", "peer", "10.9.0.9/24", "dev", "b"}, {"10.96.0.2/32", "dev", "lo"}} {
		a.Exec("ip", append([]string{"addr", "add"}, more...)...)
	}
	if err := a.Do(func() error {
		held, err := Held()
		if err != nil {
			return err
		}
		devices, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, d := range devices {
			addrs, err := d.Addrs()
			if err != nil {
				return err
			}
			var want []netip.Prefix
			for _, one := range addrs {
				want = append(want, netip.MustParsePrefix(one.String()))
			}
			got := held[d.Index]
			slices.SortFunc(got, netip.Prefix.Compare)
			slices.SortFunc(want, netip.Prefix.Compare)
			if !slices.Equal(got, want) {
				t.Errorf("addresses of %s = %v, want %v", d.Name, got, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
