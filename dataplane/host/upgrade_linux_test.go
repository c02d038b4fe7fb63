package host

import (
	"context"
	"fmt"
	"math/bits"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/guard"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// These are the objects that an earlier version of vipd left: fewer sets, a chain with other rules,
// and an interrupted trial.
const (
	earlierSets = `create vipd-held4 hash:ip
create vipd-served4 hash:ip,port
create vipd-rejected4 hash:ip,port
create vipd-restricted4 hash:ip,port
create vipd-allowed4 hash:ip,port,net
create vipd-silent4 hash:ip,port
add vipd-held4 10.96.0.10
add vipd-served4 10.96.0.10,tcp:80
add vipd-restricted4 10.96.0.10,tcp:81
add vipd-restricted4 10.96.0.10,tcp:80
add vipd-allowed4 10.96.0.10,tcp:80,192.0.2.0/24
`
	earlierRules = `*filter
:VIPD-GUARD - [0:0]
-A VIPD-GUARD -p icmp -j RETURN
-A VIPD-GUARD -m set --match-set vipd-served4 dst,dst -j RETURN
-A VIPD-GUARD -j REJECT
-I INPUT 1 -m conntrack --ctstate NEW,UNTRACKED -m set --match-set vipd-held4 dst -j VIPD-GUARD
COMMIT
*mangle
:VIPD-SPECIAL - [0:0]
-A VIPD-SPECIAL -i lo -j RETURN
-A VIPD-SPECIAL -m set --match-set vipd-allowed4 dst,dst,src -j RETURN
-A VIPD-SPECIAL -j DROP
-I PREROUTING 1 -m conntrack --ctstate NEW,UNTRACKED -m set --match-set vipd-restricted4 dst,dst -j VIPD-SPECIAL
COMMIT
*nat
:VIPD-TRIAL - [0:0]
COMMIT
`
)

func putEarlier(t *testing.T, backend xtables.Variant) {
	t.Helper()
	for _, c := range []struct{ tool, input string }{{"ipset restore", earlierSets}, {"iptables-" + string(backend) + "-restore --noflush", earlierRules}} {
		words := strings.Fields(c.tool)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdin = strings.NewReader(c.input)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c.tool, err, out)
		}
	}
}

// knock keeps trying to connect until stop is called. It returns after the first attempt. If any
// attempt has succeeded, stop fails the test.
func knock(t *testing.T, from *lab.NS, at string) (stop func()) {
	t.Helper()
	begun, done, ended := make(chan struct{}), make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-done:
				if i >= 3 { // make at least three attempts, even on a busy machine
					return
				}
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			c, err := from.Dial(ctx, "tcp", at)
			cancel()
			if err == nil {
				_ = c.Close()
				ended <- fmt.Sprintf("attempt %d to connect to %s succeeded", i, at)
			}
			if i == 0 {
				close(begun)
			}
			if err == nil {
				return
			}
		}
	}()
	<-begun
	return func() {
		t.Helper()
		close(done)
		if text := <-ended; text != "" {
			t.Fatal(text)
		}
	}
}

// TestUpgradeFromIptables starts vipd on a host with an earlier version's rules and sets. vipd must
// remove them, and excluded clients must stay excluded throughout.
func TestUpgradeFromIptables(t *testing.T) {
	bothBackends(t, func(t *testing.T, backend xtables.Variant) {
		_, client := network(t)
		o := options(t, backend)
		o.Interface, o.Mode.Forward = "lo", true
		listen(t, 80)
		listen(t, 22)
		ip(t, "addr add 10.96.0.10/32 dev lo")
		t.Cleanup(func() { _ = exec.Command("ip", "addr", "del", "10.96.0.10/32", "dev", "lo").Run() })
		primeTools(t)
		before := dumpHost(t)
		putEarlier(t, backend)
		web := []*balancer.Frontend{frontend("10.96.0.10:80", sources("192.0.2.0/24"))}

		stop := knock(t, client, "10.96.0.10:80")
		h := newHost(t, o)
		for i := range 3 {
			must(t, h.Prepare(t.Context(), desired(web...)))
			must(t, h.Finish(t.Context(), desired(web...).Frontends))
			if i < 2 {
				h.Resync(true)
			}
		}
		stop()
		saved := dumpHost(t)
		if strings.Contains(saved, "VIPD-TRIAL") {
			t.Error("rules still contain VIPD-TRIAL")
		}
		if strings.Count(saved, "-A INPUT ") != 1 || strings.Contains(saved, "-A PREROUTING ") { // only the acceptor's jump in INPUT may remain
			t.Errorf("rules =\n%s\nwant one jump to vipd's chains in INPUT and none in PREROUTING", saved)
		}
		checkIntact(t, h)
		must(t, h.Close())
		_, err := Cleanup(t.Context(), o, false)
		must(t, err)
		checkUnchanged(t, before)

		putEarlier(t, backend)
		_, err = Cleanup(t.Context(), o, false)
		must(t, err)
		checkUnchanged(t, before)
	})
}

// TestBitChanges restarts vipd with another masquerade_bit. vipd must remove the rules that use the
// old marks. Restrictions must apply throughout.
func TestBitChanges(t *testing.T) {
	l, client := network(t)
	o := options(t, xtables.NFT)
	o.Interface, o.Mode.Forward = "lo", true
	listen(t, 80)
	web, kept := frontend("10.96.0.10:80", sources("192.0.2.0/24")), frontend("10.96.0.12:80", snat(balancer.NeverSNAT))
	h := newHost(t, o)
	apply(t, h, web, frontend("10.96.0.11:80"), kept)
	stop := knock(t, client, "10.96.0.10:80")
	for _, bit := range []int{31, 0, 20} {
		must(t, h.Close())
		o.MasqueradeBit = bit
		h = newHost(t, o)
		apply(t, h, web, frontend("10.96.0.11:80"), kept)
		saved := l.Host().Exec("nft", "list", "table", "ip", "vipd-guard")
		ours := guard.MarkBits(bit)
		for _, mark := range []uint32{ours, bits.RotateLeft32(ours, 1)} { // for masquerading and for connections through vipd
			want := fmt.Sprintf("0x%08x", mark)
			if !strings.Contains(saved, want) {
				t.Errorf("bit %d: rules lack %s:\n%s", bit, want, saved)
			}
		}
		for _, old := range []string{"0x00004000", "0x00008000"} { // the marks that belong to bit 14
			if strings.Contains(saved, old) {
				t.Errorf("bit %d: rules contain the old mark %s:\n%s", bit, old, saved)
			}
		}
		checkAttempt(t, client, "10.96.0.11:80", open)
		checkIntact(t, h)
	}
	stop()
}

// TestRenderEqualsKernel renders the guard's rules, and loads the guard into the kernel. The
// kernel's rules must equal the rendered rules.
func TestRenderEqualsKernel(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface, o.Mode.Forward = "lo", true
	h := newHost(t, o)
	frontends := examples()
	apply(t, h, frontends...)
	listed := func() (words []string) { // elements of sets have no fixed order
		out := l.Host().Exec("nft", "-s", "list", "table", "ip", "vipd-guard") + l.Host().Exec("nft", "-s", "list", "table", "ip6", "vipd-guard")
		words = strings.FieldsFunc(out, func(r rune) bool { return strings.ContainsRune(",{}\n", r) })
		for i := range words {
			words[i] = strings.TrimPrefix(strings.TrimSpace(words[i]), "elements = ")
		}
		slices.Sort(words)
		return words
	}
	there := listed()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("delete table ip vipd-guard\ndelete table ip6 vipd-guard\n" + guard.Render(o.Guard(), frontends, h.view.interfaces()))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	if rendered := listed(); !slices.Equal(rendered, there) {
		t.Errorf("rendered rules =\n%s\nwant the kernel's rules\n%s", strings.Join(rendered, "\n"), strings.Join(there, "\n"))
	}
}
