package dataplanetest

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Snapshot is what netfilter holds on the host.
type Snapshot struct {
	// Ours are the lines about what carries vipd's prefix, Foreign all others, in order. Counters are left out, and so are
	// the kernel's own chains while their policy is ACCEPT: they come with the first rule.
	Ours, Foreign []string
}

// The expressions are constants that the compiler can't make.
var (
	counters  = regexp.MustCompile(` ?\[\d+:\d+\] ?`)
	ownPrefix = regexp.MustCompile(`\b(VIPD|vipd)-`)
)

// TakeSnapshot reads the rules of both backends of iptables, ipsets with their entries, and nftables' tables.
func TakeSnapshot(t testing.TB) Snapshot {
	t.Helper()
	var s Snapshot
	for _, tool := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		if has(tool) {
			s.rules(tool, run(t, tool))
		}
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

func (s *Snapshot) add(line string) {
	line = strings.TrimRight(line, "\n")
	if ownPrefix.MatchString(line) {
		s.Ours = append(s.Ours, line)
	} else {
		s.Foreign = append(s.Foreign, line)
	}
}

// rules adds what a save prints, each line with its tool and table.
func (s *Snapshot) rules(tool, saved string) {
	table := ""
	for line := range strings.Lines(saved) {
		switch {
		case strings.HasPrefix(line, "*"):
			table = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, "#"), strings.HasPrefix(line, "COMMIT"), strings.Contains(line, " ACCEPT ["):
		default:
			s.add(tool + " " + table + " " + counters.ReplaceAllString(line, ""))
		}
	}
}

// nftables adds the tables that are none of iptables'.
func (s *Snapshot) nftables(t testing.TB) {
	t.Helper()
	ofIptables := regexp.MustCompile(`^table (ip|ip6) (filter|nat|mangle|raw|security)$`)
	ours := regexp.MustCompile(`^table (ip|ip6) vipd(-guard|-redirect)?$`)
	for table := range strings.Lines(run(t, "nft", "list", "tables")) {
		if table = strings.TrimSpace(table); ofIptables.MatchString(table) {
			continue
		}
		if ours.MatchString(table) {
			s.Ours = append(s.Ours, table)
			continue
		}
		for line := range strings.Lines(run(t, "nft", append([]string{"-s", "list"}, strings.Fields(table)...)...)) {
			s.add(line)
		}
	}
}

// sameForeign checks that what is not ours is byte for byte what it was.
func sameForeign(t testing.TB, when string, before Snapshot) {
	t.Helper()
	if after := TakeSnapshot(t); !slices.Equal(after.Foreign, before.Foreign) {
		t.Errorf("%s others have\n%s\nwant\n%s", when, strings.Join(after.Foreign, "\n"), strings.Join(before.Foreign, "\n"))
	}
}

// nothingOfOurs checks that netfilter holds nothing that carries our prefix.
func nothingOfOurs(t testing.TB, when string) {
	t.Helper()
	if s := TakeSnapshot(t); len(s.Ours) > 0 {
		t.Errorf("%s there is\n%s\nwant nothing of ours", when, strings.Join(s.Ours, "\n"))
	}
}
