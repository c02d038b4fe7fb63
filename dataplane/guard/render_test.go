package guard

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// TestRender compares with golden files; go test -run TestRender ./dataplane/guard -update writes it.
func TestRender(t *testing.T) {
	checkRendered(t, "legacy", dataplane.Needs{Forward: true, TranslatesAll: true, Resets: true}, examples(), "testdata/render.want")
	checkRendered(t, "auto", dataplane.Needs{Forward: true, TranslatesAll: true, Resets: true}, examples(), "testdata/nft.want")
	direct := examples()
	for i, how := range []balancer.Forward{balancer.DRForward, balancer.TunnelForward} {
		direct = append(direct, frontend(fmt.Sprintf("10.96.0.%d:80", 60+i), forward(how)), frontend(fmt.Sprintf("[fd00:96::%d]:80", 60+i), forward(how), func(f *balancer.Frontend) {
			f.Backends[0].Addr = netip.MustParseAddrPort("[2001:db8::9]:80")
		}))
	}
	checkRendered(t, "legacy", dataplane.Needs{Forward: true, LocalIn: true}, direct, "testdata/ipvs.want")
	checkRendered(t, "auto", dataplane.Needs{Forward: true, LocalIn: true}, direct, "testdata/nft-ipvs.want")
	if got := Render(Options{}, []*balancer.Frontend{frontend("127.0.0.1:80"), frontend("[::1]:80")}, nil); got != "" {
		t.Errorf("for loopback alone it renders\n%s", got)
	}
}

func checkRendered(t *testing.T, variant xtables.Variant, m dataplane.Needs, frontends []*balancer.Frontend, golden string) {
	t.Helper()
	o := Options{Mode: m, MasqueradeBit: 14, Variant: variant}
	got := Render(o, frontends, []Interface{{"eth1", 3}, {"eth0", 2}})
	shuffled := slices.Clone(frontends)
	slices.Reverse(shuffled)
	if again := Render(o, shuffled, []Interface{{"eth0", 2}, {"eth1", 3}}); again != got {
		t.Errorf("in another order it renders\n%s\nbefore:\n%s", again, got)
	}
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

var update = flag.Bool("update", false, "write the golden file")

// TestCovering holds the networks that cover addresses to being few, and tight.
func TestCovering(t *testing.T) {
	for _, c := range []struct{ addrs, want []string }{
		{nil, nil},
		{[]string{"10.96.0.1"}, []string{"10.96.0.1/32"}},
		{[]string{"10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4"}, []string{"10.96.0.1/32", "10.96.0.2/32", "10.96.0.3/32", "10.96.0.4/32"}},
		{[]string{"10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "10.96.0.5"}, []string{"10.96.0.1/32", "10.96.0.2/32", "10.96.0.3/32", "10.96.0.4/31"}},
		{
			[]string{"10.96.0.1", "10.96.200.9", "10.97.0.1", "10.98.0.1", "172.16.0.1", "192.168.1.1", "192.168.1.2"},
			[]string{"10.96.0.0/15", "10.98.0.1/32", "172.16.0.1/32", "192.168.1.0/30"},
		},
		{[]string{"1.0.0.1", "2.0.0.1", "64.0.0.1", "128.0.0.1", "192.0.0.1"}, []string{"0.0.0.0/6", "64.0.0.1/32", "128.0.0.1/32", "192.0.0.1/32"}},
		{[]string{"fd00:1::1", "fd00:1::2", "fd00:2::1", "fd00:3::1", "fd00:3:1::1", "fd7a::1"}, []string{"fd00:1::/126", "fd00:2::1/128", "fd00:3::/47", "fd7a::1/128"}},
	} {
		var addrs []netip.Addr
		for _, a := range c.addrs {
			addrs = append(addrs, addrOf(a))
		}
		var got []string
		for _, p := range covering(addrs) {
			got = append(got, p.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.addrs, got, c.want)
		}
	}
}
