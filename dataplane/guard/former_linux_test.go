package guard

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/test/lab"
)

// putFormer adds all chains and ipsets of an earlier version's guard, for one iptables variant and
// both families. It also adds another program's chain and set.
func putFormer(t *testing.T, variant string) {
	t.Helper()
	for _, of := range inet.Families() {
		var sets, rules strings.Builder
		family := map[inet.Family]string{inet.IPv4: "inet", inet.IPv6: "inet6"}[of]
		for _, name := range formerSets(of) {
			fmt.Fprintf(&sets, "create %s hash:ip,port family %s\n", name, family)
		}
		fmt.Fprintf(&sets, "create other%s hash:ip family %s\n", of.Digit(), family)
		for _, table := range append(formerTables(), formerRedirects()...) {
			fmt.Fprintf(&rules, "*%s\n", table.name)
			for _, c := range table.chains {
				fmt.Fprintf(&rules, ":%s - [0:0]\n", c)
			}
			for i, c := range table.chains[1:] {
				fmt.Fprintf(&rules, "-A %s -m set --match-set vipd-held%s dst,dst -j %s\n", table.chains[i], of.Digit(), c)
			}
			for _, base := range table.bases {
				fmt.Fprintf(&rules, "-I %s 1 -m connmark --mark 0x8000/0x8000 -j %s\n", base, table.chains[0])
			}
			rules.WriteString("COMMIT\n")
		}
		rules.WriteString("*filter\n:OTHER - [0:0]\n-A INPUT -j OTHER\nCOMMIT\n")
		feed(t, sets.String(), "ipset", "restore")
		feed(t, rules.String(), of.Program()+"-"+variant+"-restore", "--noflush", "-w")
	}
}

func feed(t *testing.T, input, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", program, err, out, input)
	}
}

// formerLeft returns iptables' rules and the names of the ipsets. It omits comments, because
// iptables-save writes the time into them.
func formerLeft(t *testing.T, l *lab.Lab, variant string) string {
	t.Helper()
	var left strings.Builder
	for _, program := range []string{"iptables", "ip6tables"} {
		for line := range strings.Lines(l.Host().Exec(program + "-" + variant + "-save")) {
			if !strings.HasPrefix(line, "#") {
				left.WriteString(line)
			}
		}
	}
	return left.String() + l.Host().Exec("ipset", "list", "-n")
}

// TestFormerGuard removes an earlier version's guard with Cleanup, and after adding it again, with
// removeFormer. Other programs' objects must stay. A dry run must change nothing.
func TestFormerGuard(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy", "ipset", "nft")
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			l := lab.New(t)
			putFormer(t, variant)
			before := formerLeft(t, l, variant)
			would, err := Cleanup(t.Context(), true)
			if after := formerLeft(t, l, variant); err != nil || after != before {
				t.Fatalf("state after a dry run (error %v) =\n%s\nwant the state before the dry run:\n%s", err, after, before)
			}
			did, err := Cleanup(t.Context(), false)
			if err != nil || !slices.Equal(did, would) || len(did) != 2*(len(formerTables())+len(formerSets(inet.IPv4))) {
				t.Errorf("steps of Cleanup (error %v) =\n%s\nwant the steps of the dry run:\n%s", err, strings.Join(did, "\n"), strings.Join(would, "\n"))
			}
			if did, err := CleanupRedirects(t.Context(), false); err != nil || len(did) != 2 {
				t.Errorf("CleanupRedirects = %q, %v; want 2 steps", did, err)
			}
			checkNoFormer(t, l, variant)
			if did, err := Cleanup(t.Context(), false); err != nil || len(did) > 0 {
				t.Errorf("second Cleanup = %q, %v; want no steps", did, err)
			}
			removeOthers(l, variant)

			putFormer(t, variant)
			for _, of := range inet.Families() {
				if err := removeFormer(t.Context(), of, slog.New(slog.DiscardHandler)); err != nil {
					t.Error(err)
				}
			}
			if _, err := CleanupRedirects(t.Context(), false); err != nil {
				t.Error(err)
			}
			checkNoFormer(t, l, variant)
			removeOthers(l, variant)
		})
	}
}

// TestAdoptedRedirectsReplaceFormer sets redirects to sockets that a process of an earlier version
// handed over. Observe must keep the earlier version's redirects in iptables. The first Set must
// remove them.
func TestAdoptedRedirectsReplaceFormer(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "iptables-nft", "ip6tables-nft", "ipset", "nft")
	l := lab.New(t)
	putFormer(t, "nft")
	defer func() { // needed because all tests of the package share a network namespace
		if _, err := Cleanup(t.Context(), false); err != nil {
			t.Error(err)
		}
		removeOthers(l, "nft")
	}()
	for of, addr := range map[inet.Family]string{inet.IPv4: "192.0.2.1", inet.IPv6: "2001:db8::1"} {
		r, err := NewRedirects(of)
		if err != nil {
			t.Fatal(err)
		}
		r.Adopt()
		if _, err := r.Observe(t.Context()); err != nil || !strings.Contains(l.Host().Exec(of.Program()+"-nft-save"), "VIPD-US") {
			t.Errorf("%s: Observe removed the earlier version's redirects (error %v), want them kept", of, err)
		}
		key := balancer.Key{Addr: netip.MustParseAddr(addr), Port: 80, Proto: balancer.TCP}
		if err := r.Set(t.Context(), map[balancer.Key]uint16{key: 8080}); err != nil {
			t.Error(err)
		}
		if saved := l.Host().Exec(of.Program() + "-nft-save"); strings.Contains(saved, "VIPD-US") {
			t.Errorf("%s: rules after Set =\n%s\nwant none of the earlier version's redirects", of, saved)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// removeOthers removes the objects that putFormer added for another program.
func removeOthers(l *lab.Lab, variant string) {
	for _, line := range []string{"iptables-" + variant + " -F", "iptables-" + variant + " -X", "ip6tables-" + variant + " -F", "ip6tables-" + variant + " -X", "ipset destroy"} {
		words := strings.Fields(line)
		l.Host().Exec(words[0], words[1:]...)
	}
}

func checkNoFormer(t *testing.T, l *lab.Lab, variant string) {
	t.Helper()
	left := formerLeft(t, l, variant)
	if strings.Contains(left, "VIPD-") || strings.Contains(left, "vipd-") {
		t.Errorf("remaining objects =\n%s\nwant none of vipd's objects", left)
	}
	if strings.Count(left, "-A INPUT -j OTHER") != 2 || !strings.Contains(left, "other4") || !strings.Contains(left, "other6") {
		t.Errorf("remaining objects =\n%s\nwant all objects of the other program", left)
	}
}

// TestFormerGuardWithoutIptables hides the iptables programs that could list the rules of an
// earlier version's guard. These rules and their ipset must stay. vipd must log one warning and
// return no error, because a retry would not help.
func TestFormerGuardWithoutIptables(t *testing.T) {
	for name, programs := range map[string][]string{
		"no iptables": nil,
		"only nft":    {"iptables-nft", "iptables-nft-save", "iptables-nft-restore"},
	} {
		t.Run(name, func(t *testing.T) {
			l := lab.New(t)
			lab.Need(t, "iptables-legacy", "ip6tables-legacy", "iptables-nft", "ipset")
			putFormer(t, "legacy")
			before := formerRules(t, l)
			var log bytes.Buffer
			err := withPrograms(t, programs, func() error {
				return removeFormer(t.Context(), inet.IPv4, slog.New(slog.NewTextHandler(&log, nil)))
			})
			if after := formerRules(t, l); err != nil || after != before || !strings.Contains(before, "-A VIPD-") {
				t.Errorf("error = %v, rules =\n%s\nwant no error, and these rules:\n%s", err, after, before)
			}
			if got := log.String(); strings.Count(got, "level=WARN") != 1 || strings.Contains(got, "level=INFO") {
				t.Errorf("log = %q, want one warning", got)
			}
			for _, clean := range []func(context.Context, bool) ([]string, error){Cleanup, CleanupRedirects} {
				if _, err := clean(t.Context(), false); err != nil {
					t.Error(err)
				}
			}
			removeOthers(l, "legacy")
		})
	}
}

// formerRules returns the rules of iptables-legacy, and the name of the ipset that they use.
func formerRules(t *testing.T, l *lab.Lab) string {
	t.Helper()
	var kept []string
	for line := range strings.Lines(formerLeft(t, l, "legacy")) {
		if !strings.HasPrefix(line, "vipd-") || strings.HasPrefix(line, "vipd-held") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// withPrograms calls do while PATH contains only these programs.
func withPrograms(t *testing.T, programs []string, do func() error) error {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", dir)
	defer t.Setenv("PATH", path)
	return do()
}
