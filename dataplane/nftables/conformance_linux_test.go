package nftables

import (
	"context"
	"log/slog"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/guard"
	"vipd/dataplane/host"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestConformance runs the conformance suite with real traffic.
func TestConformance(t *testing.T) { dataplanetest.Run(t, subject(options())) }

// TestIPVSFastPathConformance runs one test of the conformance suite with a fast path. "make soak"
// runs all tests.
func TestIPVSFastPathConformance(t *testing.T) {
	lab.NeedIPVS(t) // the emulated guest that has IPVS also has flowtables
	o := options()
	o.FastPath = []string{guard.FastPathAuto}
	var cases []string
	if !wait.Soaking() {
		cases = []string{"drains"}
	}
	dataplanetest.Run(t, subject(o), cases...)
}

// subject describes nftables mode to the conformance suite, with a host that uses these options.
func subject(o host.Options) dataplanetest.Subject {
	return dataplanetest.Subject{
		Name:     "nftables",
		Backend:  string(xtables.NFT),
		Keeps:    true,
		Survives: true,
		New: func(t testing.TB) dataplane.Dataplane {
			d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: guard.MarkBits(options().MasqueradeBit)})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Host:      func(t testing.TB) dataplane.Host { return dataplanetest.GuardedHost(t, o) },
		Cleanup:   cleanup,
		Damage:    damages(),
		Scratches: dataplanetest.Scratches(),
	}
}

// options returns the host's options in the conformance suite.
func options() host.Options {
	o := host.DefaultOptions()
	o.Variant, o.Mode = xtables.NFT, Needs()
	return o
}

func cleanup(t testing.TB) {
	t.Helper()
	_, err := Cleanup(false)
	_, hostErr := host.Cleanup(context.Background(), options(), false)
	if err != nil || hostErr != nil {
		t.Fatal(err, hostErr)
	}
}

// damages returns named functions, each of which damages the guard or one of vipd's tables.
func damages() map[string]func(t testing.TB) {
	all := dataplanetest.Damages(string(xtables.NFT))
	for what, script := range map[string]string{
		"ruleset-flushed":  "flush ruleset",
		"table-deleted":    "delete table ip vipd\ndelete table ip6 vipd",
		"chains-flushed":   "flush chain ip vipd prerouting\nflush chain ip6 vipd prerouting\nflush chain ip vipd output",
		"maps-flushed":     "flush map ip vipd frontends\nflush map ip6 vipd eps",
		"rule-put-before":  "insert rule ip vipd prerouting tcp dport 80 accept",
		"rule-put-between": "insert rule ip6 vipd unserved drop",
		"put-to-sleep":     "add table ip vipd { flags dormant; }\nadd chain ip6 vipd prerouting { policy drop; }",
	} {
		all["nft-"+what] = func(t testing.TB) {
			t.Helper()
			load(t, script+"\n")
		}
	}
	for what, line := range map[string]string{"flushed": "flush chain ip vipd $1", "shadowed": "insert rule ip vipd $1 drop"} {
		all["nft-choices-"+what] = func(t testing.TB) {
			t.Helper()
			listing, err := exec.Command("nft", "list", "table", "ip", "vipd").Output()
			if err != nil {
				t.Fatal(err)
			}
			var script []byte
			for _, m := range chosen.FindAllSubmatchIndex(listing, -1) {
				script = chosen.Expand(script, []byte(line+"\n"), listing, m)
			}
			load(t, string(script))
		}
	}
	return all
}

// chosen matches the names of chains that choose endpoints, in nft's listing of vipd's table.
var chosen = regexp.MustCompile(`(?m)^\tchain ((?:random|turn|hash)-\S*) `)

func load(t testing.TB, script string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("running a command: %v: %s", err, out)
	}
}
