package userspace

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// remembered are the keys that conntrack has UDP entries of.
func remembered(t *testing.T, tr tracked) map[balancer.Key]bool {
	t.Helper()
	entries, err := tr.list(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[balancer.Key]bool{}
	for _, e := range entries {
		attrs, err := attrsOf(e[4:])
		if err != nil {
			t.Fatal(err)
		}
		if k, ok := destination(attrs[1]); ok {
			keys[k] = true
		}
	}
	return keys
}

// For random keys, few and many: exactly theirs are forgotten.
func TestForgetsTheFlowsOfTheKeysAndNoOthers(t *testing.T) {
	w := newTown(t)
	lab.Need(t, "iptables")
	for _, tool := range []string{"iptables", "ip6tables"} { // conntrack sees what rules use it
		w.Host().Exec("sh", "-c", tool+" -t nat -A OUTPUT -m conntrack --ctstate INVALID -j RETURN")
	}
	random := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		family xtables.Family
		tr     tracked
		at     []string
	}{
		{xtables.IPv4, tracked{unix.AF_INET}, []string{"10.96.0.1", "10.9.0.1"}},
		{xtables.IPv6, tracked{unix.AF_INET6}, []string{"fd00:96::1", "fd00:9::1"}},
	} {
		for _, n := range []int{1, fewKeys, fewKeys + 4} {
			t.Run(fmt.Sprintf("%s, %d", c.family, n), func(t *testing.T) {
				all := map[balancer.Key]bool{}
				for port := uint16(3000); port < 3010; port++ {
					for _, at := range c.at {
						k := balancer.Key{Addr: netip.MustParseAddr(at), Port: port, Proto: balancer.UDP}
						all[k] = true
						x, err := w.Host().Dial(t.Context(), "udp", k.AddrPort().String())
						if err != nil {
							t.Fatal(err)
						}
						_, _ = x.Write([]byte("x"))
						x.Close()
					}
				}
				before := remembered(t, c.tr)
				gone := map[balancer.Key]bool{}
				for k := range all {
					if !before[k] {
						t.Fatalf("conntrack does not know %s", k)
					}
					if len(gone) < n && random.IntN(2) == 0 {
						gone[k] = true
					}
				}
				if err := forgetFlows(c.family, gone); err != nil {
					t.Fatal(err)
				}
				after := remembered(t, c.tr)
				for k := range all {
					if after[k] == gone[k] {
						t.Errorf("%s: remembered %v, want %v", k, after[k], !gone[k])
					}
				}
			})
		}
	}
}

func TestWhatIsToBeForgottenIsKept(t *testing.T) {
	w := newTown(t)
	w.serve()
	d := redirecting(t)
	f := w.four(t, 80)[1]
	y := d.tables.(*redirect).families[familyOf(f.Key)]
	y.forgetFlows = func(xtables.Family, map[balancer.Key]bool) error { return unix.EPERM }
	c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = lab.AskWithin(c, 50*time.Millisecond) // conntrack knows it as not redirected, if it knows it
	if err := d.tryApply(f); err == nil {
		t.Fatal("it succeeded though flows are remembered")
	}
	y.forgetFlows = forgetFlows
	d.apply(f)
	if len(y.stale) > 0 {
		t.Errorf("%v are still to be forgotten", y.stale)
	}
	eventually(t, "the answer", func() error { _, err := lab.AskWithin(c, 100*time.Millisecond); return err })
}
