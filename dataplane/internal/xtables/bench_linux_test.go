package xtables

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"vipd/dataplane/internal/inet"

	"golang.org/x/sys/unix"
)

// services is n services of 10 endpoints, a chain for each and leaf chains that lead to four of them, and levels of
// chains above: 114,000 rules in 13,336 chains for 10,000.
func services(n int) []Group {
	var groups []Group
	var names []string
	for i := range n {
		c := Chain{Name: fmt.Sprintf("VIPD-10.%d.%d.%d:80/t", 96+i>>16, i>>8&255, i&255)}
		for e := range 9 {
			c.Rules = append(c.Rules, fmt.Sprintf("-p tcp -m statistic --mode random --probability %.10f -j DNAT --to-destination 10.0.%d.%d:8080", 1/float64(10-e), e, i&255))
		}
		c.Rules = append(c.Rules, fmt.Sprintf("-p tcp -j DNAT --to-destination 10.0.9.%d:8080", i&255))
		groups, names = append(groups, Group{Write: []Chain{c}}), append(names, c.Name)
	}
	for level := 0; len(names) > 1; level++ {
		var next []string
		for i := 0; i < len(names); i += 4 {
			c := Chain{Name: fmt.Sprintf("VIPD-N-%d-%d", level, i)}
			for _, to := range names[i:min(i+4, len(names))] {
				c.Rules = append(c.Rules, fmt.Sprintf("-d 10.%d.0.0/16 -g %s", 96+len(c.Rules), to))
			}
			groups, next = append(groups, Group{Write: []Chain{c}}), append(next, c.Name)
		}
		names = next
	}
	return append(groups, Group{Write: []Chain{{"VIPD-SERVICES", []string{"-j " + names[0]}}}})
}

func modelOf(groups []Group) model {
	m := model{}
	for i := range groups {
		groups[i].applyWrites(m)
	}
	return m
}

// benchmark runs f for each variant and size, in a network namespace of its own.
func benchmark(b *testing.B, f func(b *testing.B, tool *Tool, groups []Group)) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: makes a network namespace")
	}
	for _, variant := range []Variant{NFT, Legacy} {
		for _, n := range []int{1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", variant, n), func(b *testing.B) {
				b.Setenv("XTABLES_LOCKFILE", filepath.Join(b.TempDir(), "xtables.lock"))
				runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					b.Skip("needs network namespaces: ", err)
				}
				tool, err := Find(b.Context(), inet.IPv4, variant, slog.New(slog.DiscardHandler))
				if u := (*UnsupportedError)(nil); errors.As(err, &u) {
					b.Skip(err)
				}
				if err != nil {
					b.Fatal(err)
				}
				f(b, tool, services(n))
			})
		}
	}
}

// loaded is benchmark with the services in the table, and the table in use.
func loaded(b *testing.B, f func(b *testing.B, tool *Tool, groups []Group)) {
	benchmark(b, func(b *testing.B, tool *Tool, groups []Group) {
		if _, err := tool.Write(b.Context(), "nat", groups); err != nil {
			b.Fatal(err)
		}
		join(b, tool, "nat", "PREROUTING", "-j VIPD-SERVICES", "VIPD-SERVICES")
		b.ResetTimer()
		f(b, tool, groups)
	})
}

// BenchmarkWriteAll loads an empty table.
func BenchmarkWriteAll(b *testing.B) {
	benchmark(b, func(b *testing.B, tool *Tool, groups []Group) {
		for b.Loop() {
			if n, err := tool.Write(b.Context(), "nat", groups); err != nil || n != len(groups) {
				b.Fatal(n, err)
			}
			b.StopTimer()
			if err := tool.Restore(b.Context(), "*nat\n-F\n-X\nCOMMIT\n"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}

// BenchmarkWriteAgain replaces every chain of a table in use.
func BenchmarkWriteAgain(b *testing.B) {
	loaded(b, func(b *testing.B, tool *Tool, groups []Group) {
		for b.Loop() {
			if n, err := tool.Write(b.Context(), "nat", groups); err != nil || n != len(groups) {
				b.Fatal(n, err)
			}
		}
	})
}

// BenchmarkWriteOne replaces the chain of one service.
func BenchmarkWriteOne(b *testing.B) {
	loaded(b, func(b *testing.B, tool *Tool, groups []Group) {
		for b.Loop() {
			if _, err := tool.Write(b.Context(), "nat", groups[:1]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkStamp(b *testing.B) {
	loaded(b, func(b *testing.B, tool *Tool, _ []Group) {
		for b.Loop() {
			if _, err := tool.Stamp("nat"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCompare(b *testing.B) {
	loaded(b, func(b *testing.B, tool *Tool, groups []Group) {
		sizes := modelOf(groups).sizes()
		sizes["VIPD-SERVICES"]++
		for b.Loop() {
			if reason, err := tool.Compare(b.Context(), "nat", prefixed("VIPD-"), sizes); err != nil || reason != "" {
				b.Fatal(reason, err)
			}
		}
	})
}

// BenchmarkCounts asks for all chains.
func BenchmarkCounts(b *testing.B) {
	loaded(b, func(b *testing.B, tool *Tool, groups []Group) {
		for b.Loop() {
			if counts, err := tool.FullCounts(b.Context(), "nat", "VIPD-"); err != nil || len(counts) != len(groups) {
				b.Fatal(len(counts), err)
			}
		}
	})
}

func BenchmarkSaved(b *testing.B) {
	loaded(b, func(b *testing.B, tool *Tool, groups []Group) {
		for b.Loop() {
			chains := 0
			leads, err := tool.Saved(b.Context(), "nat", "VIPD-", func(string, []string) error { chains++; return nil })
			if err != nil || chains != len(groups) || len(leads) != 1 {
				b.Fatal(chains, leads, err)
			}
		}
	})
}
