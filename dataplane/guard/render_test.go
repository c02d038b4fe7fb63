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
)

// TestRender compares rendered tables with golden files. "go test -run TestRender ./dataplane/guard
// -update" updates the files.
func TestRender(t *testing.T) {
	checkRendered(t, dataplane.Needs{Forward: true, TranslatesAll: true, Resets: true}, examples(), "testdata/nft.want")
	direct := examples()
	for i, how := range []balancer.Forward{balancer.DRForward, balancer.TunnelForward} {
		direct = append(direct, frontend(fmt.Sprintf("10.96.0.%d:80", 60+i), forward(how)), frontend(fmt.Sprintf("[fd00:96::%d]:80", 60+i), forward(how), func(f *balancer.Frontend) {
			f.Backends[0].Addr = netip.MustParseAddrPort("[2001:db8::9]:80")
		}))
	}
	checkRendered(t, dataplane.Needs{Forward: true, LocalIn: true}, direct, "testdata/nft-ipvs.want")
	if got := Render(Options{}, []*balancer.Frontend{frontend("127.0.0.1:80"), frontend("[::1]:80")}, nil); got != "" {
		t.Errorf("only loopback frontends: Render =\n%s\nwant \"\"", got)
	}
}

func checkRendered(t *testing.T, m dataplane.Needs, frontends []*balancer.Frontend, golden string) {
	t.Helper()
	o := Options{Mode: m, MasqueradeBit: 14}
	got := Render(o, frontends, []Interface{{"eth1", 3, 1400}, {"eth0", 2, 1500}})
	shuffled := slices.Clone(frontends)
	slices.Reverse(shuffled)
	if again := Render(o, shuffled, []Interface{{"eth0", 2, 1500}, {"eth1", 3, 1400}}); again != got {
		t.Errorf("same frontends in another order: Render =\n%s\nwant\n%s", again, got)
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
		t.Errorf("Render =\n%s\nwant\n%s", got, want)
	}
}

var update = flag.Bool("update", false, "write the golden file")
