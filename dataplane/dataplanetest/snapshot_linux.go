package dataplanetest

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// snapshot is a listing of the host's netfilter objects.
type snapshot struct {
	// ours holds the lines of objects whose names have vipd's prefix, and foreign holds all other
	// lines, in order. Counters are omitted. Built-in chains with the policy ACCEPT are omitted,
	// because the kernel creates them with the first rule.
	ours, foreign []string
}

// These are variables only because Go does not permit such constants.
var (
	counters  = regexp.MustCompile(` ?\[\d+:\d+\] ?`)
	ownPrefix = regexp.MustCompile(`\b(VIPD|vipd)-`)
)

// takeSnapshot reads the rules of both iptables backends, the ipsets with their entries, and the
// nftables tables.
func takeSnapshot(t testing.TB) snapshot {
	t.Helper()
	var s snapshot
	for _, tool := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		savedBy(t, tool, func(table, line string) {
			passing := strings.HasPrefix(line, "*") || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "COMMIT")
			if !passing && !strings.Contains(line, " ACCEPT [") {
				s.add(tool + " " + table + " " + counters.ReplaceAllString(line, ""))
			}
		})
	}
	if has("ipset") {
		for line := range strings.Lines(run(t, "ipset", "save")) {
			s.add(line)
		}
	}
	if has("nft") {
		s.nftables(t)
	}
	return s
}

func has(tool string) bool {
	_, err := exec.LookPath(tool)
	return err == nil
}

func (s *snapshot) add(line string) {
	line = strings.TrimRight(line, "\n")
	if ownPrefix.MatchString(line) {
		s.ours = append(s.ours, line)
	} else {
		s.foreign = append(s.foreign, line)
	}
}

// nftables adds those nftables tables that do not belong to iptables.
func (s *snapshot) nftables(t testing.TB) {
	t.Helper()
	ofIptables := regexp.MustCompile(`^table (ip|ip6) (filter|nat|mangle|raw|security)$`)
	ours := regexp.MustCompile(`^table (ip|ip6) vipd(-guard|-redirect|-redirect-ranges|-ipvs-ranges)?$`)
	for table := range strings.Lines(run(t, "nft", "list", "tables")) {
		if table = strings.TrimSpace(table); ofIptables.MatchString(table) {
			continue
		}
		if ours.MatchString(table) {
			s.ours = append(s.ours, table)
			continue
		}
		for line := range strings.Lines(run(t, "nft", append([]string{"-s", "list"}, strings.Fields(table)...)...)) {
			s.add(line)
		}
	}
}

// sameForeign checks that other programs' objects are unchanged, byte for byte.
func sameForeign(t testing.TB, when string, before snapshot) {
	t.Helper()
	if after := takeSnapshot(t); !slices.Equal(after.foreign, before.foreign) {
		t.Errorf("%s: objects of other programs =\n%s\nwant\n%s", when, strings.Join(after.foreign, "\n"), strings.Join(before.foreign, "\n"))
	}
}

// nothingOfOurs checks that no netfilter object has a name with vipd's prefix.
func nothingOfOurs(t testing.TB, when string) {
	t.Helper()
	if s := takeSnapshot(t); len(s.ours) > 0 {
		t.Errorf("%s: objects with vipd's prefix =\n%s\nwant none", when, strings.Join(s.ours, "\n"))
	}
}
