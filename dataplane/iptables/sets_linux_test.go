package iptables

import (
	"context"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

func openSets(t *testing.T) *ipset.Conn {
	t.Helper()
	sets, err := ipset.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sets.Close)
	return sets
}

// TestCleanupContinues keeps each set in use in turn, which makes Cleanup fail. The next Cleanup
// must remove the remaining sets.
func TestCleanupContinues(t *testing.T) {
	newRig(t, xtables.NFT)
	sets := openSets(t)
	for held := range 4 {
		for i := range 4 {
			if err := createSet(sets, stickySet(i, inet.IPv4), inet.IPv4); err != nil {
				t.Fatal(err)
			}
		}
		holder := []string{"-I", "INPUT", "-m", "set", "--match-set", stickySet(held, inet.IPv4), "src,src,src", "-j", "RETURN"}
		run(t, "iptables-nft", holder...)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := Cleanup(ctx, false); err == nil {
			t.Errorf("set %d is in use: Cleanup = nil, want an error", held)
		}
		cancel()
		holder[0] = "-D"
		run(t, "iptables-nft", holder...)
		lab.Eventually(t, 5*time.Second, "a cleanup once nft has let go of the set", func() error { _, err := Cleanup(t.Context(), false); return err })
		if left := run(t, "ipset", "list", "-n"); left != "" {
			t.Fatalf("after set %d was released and Cleanup ran again: sets = %q, want none", held, left)
		}
	}
}

// TestForeignSets creates sets that have the names of vipd's sets, like another program. vipd must
// replace them. If a set is in use, the error must name the command that removes it.
func TestForeignSets(t *testing.T) {
	for _, kind := range []string{"hash:ip", "hash:ip,port,ip", "hash:ip,port,ip family inet6 timeout 0"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t, xtables.NFT)
			run(t, "ipset", append([]string{"create", stickySet(0, inet.IPv4)}, strings.Fields(kind)...)...)
			if _, err := r.d.Observe(t.Context()); err != nil {
				t.Fatal(err)
			}
			f := r.web(balancer.TCP, 2, 3)
			f.AffinityTimeout = time.Hour
			change := []dataplane.Change{{Key: f.Key, New: f}}

			holder := []string{"-I", "INPUT", "-m", "set", "--match-set", stickySet(0, inet.IPv4), "src,src,src", "-j", "RETURN"}
			program := "iptables-nft"
			if strings.Contains(kind, "inet6") {
				program = "ip6tables-nft"
			}
			run(t, program, holder...)
			if err := r.d.Apply(t.Context(), change); err == nil || !strings.Contains(err.Error(), "ipset destroy "+stickySet(0, inet.IPv4)) {
				t.Errorf("Apply = %v, want an error that names the command ipset destroy", err)
			}
			holder[0] = "-D"
			run(t, program, holder...)
			lab.Eventually(t, 5*time.Second, "sets to be let go of, which nft does a moment later", func() error { return r.d.Apply(t.Context(), change) })
			_, first := r.ask(balancer.TCP)
			for range 5 {
				if _, again := r.ask(balancer.TCP); again != first {
					t.Errorf("server = %s, want %s", again, first)
				}
			}
		})
	}
}

// TestRenderedSets loads rendered sets into the kernel. Their settings must equal those that the
// dataplane uses.
func TestRenderedSets(t *testing.T) {
	r := newRig(t, xtables.NFT)
	f := r.web(balancer.TCP, 2, 3)
	f.AffinityTimeout = time.Hour
	r.apply(f)
	want := settings(t)
	text := Render([]*balancer.Frontend{f}, "")
	if err := r.d.Close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	made := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "create ") {
			run(t, "ipset", strings.Fields(line)...)
			made++
		}
	}
	if got := settings(t); made != 2 || got != want {
		t.Errorf("rendered sets =\n%s\nwant 2 sets as in the kernel:\n%s", got, want)
	}
	r.d = r.open(xtables.NFT)
}

func settings(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(run(t, "ipset", "save")) {
		if strings.HasPrefix(line, "create ") {
			line, _, _ = strings.Cut(line, " bucketsize ") // also removes the seed, which only newer revisions of the set type print
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	return b.String()
}

// TestIntactNamesExtraChains adds chains with vipd's prefix. Intact must report chains that belong
// to this dataplane, and must ignore chains that belong to other packages of vipd.
func TestIntactNamesExtraChains(t *testing.T) {
	eachBackend(t, func(r *rig) {
		tool := "iptables-" + string(r.d.families[inet.IPv4].tool.Variant())
		for _, c := range []struct {
			chain string
			ours  bool
		}{
			{"VIPD-POSTROUTING", false}, {"VIPD-MASQUERADE", false}, {"VIPD-TRIAL", false}, {"VIPD-US", false}, {"MINE", false},
			{"VIPD-10.96.0.99:80/t", true}, {"VIPD-E-x-0", true}, {"VIPD-A-x-0", true}, {"VIPD-N-x", true},
		} {
			if _, err := r.d.Observe(r.Context()); err != nil {
				r.Fatal(err)
			}
			r.apply(r.web(balancer.TCP, 2))
			y := r.d.families[inet.IPv4]
			y.look = xtables.Watch{}
			run(r.T, tool, "-t", "nat", "-N", c.chain)
			reason, err := r.d.Intact(r.Context())
			if err != nil || strings.Contains(reason, "unexpected chain "+c.chain) != c.ours || (reason != "") != c.ours {
				r.Errorf("extra chain %s: Intact = %q, %v; want a reason = %t", c.chain, reason, err, c.ours)
			}
			run(r.T, tool, "-t", "nat", "-X", c.chain)
		}
	})
}
