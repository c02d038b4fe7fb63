package fleet

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vipd/test/wait"
)

// cpu returns the CPU time of a process, from proc_pid_stat(5).
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, fields, _ := strings.Cut(string(text), ") ") // the program's name in parentheses may contain spaces
	var ticks int64
	for _, field := range strings.Fields(fields)[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100) // USER_HZ
}

// memory returns a process's current and maximum resident memory in bytes, from proc_pid_status(5).
func memory(t testing.TB, pid int) (now, most int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			most = kib << 10
		}
	}
	if most == 0 {
		t.Fatal("the kernel reports no memory usage of the process")
	}
	return now, most
}

// spread is a set of durations.
type spread []time.Duration

// at returns a quantile. part is between 0 and 1.
func (s spread) at(part float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

func (s spread) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("p50 %s, p99 %s, at most %s of %d", round(s.at(0.5)), round(s.at(0.99)), round(s.at(1)), len(s))
}

// wantWithin checks that a duration is at most five times its target aim. This detects only hangs;
// benchmarks measure the figures.
func wantWithin(t testing.TB, what string, aim, got time.Duration) {
	t.Helper()
	if bound := wait.Bound(5 * aim); got > bound {
		t.Errorf("%s = %s, want at most %s", what, got, bound)
	}
}

// report adds p50 and p99 in milliseconds to the results of a benchmark.
func (s spread) report(b *testing.B, what string) {
	b.ReportMetric(milli(s.at(0.5)), what+"-p50-ms")
	b.ReportMetric(milli(s.at(0.99)), what+"-p99-ms")
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
