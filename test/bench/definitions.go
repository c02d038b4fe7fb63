package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// definitions measures the daemon with a directory of many services. Each service has ten endpoints
// and its own file. It measures the time from the start until all services are served, the maximum
// memory, and the time from noticing a changed file to serving the change.
func definitions(ctx context.Context, vipd string, services, changes int) (err error) {
	dir, err := os.MkdirTemp("", "vipd-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeDefinitions(dir, services); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, vipd, "--config", filepath.Join(dir, "vipd.toml"), "--log-level", "warn")
	command.Stderr = os.Stderr
	began := time.Now()
	if err := command.Start(); err != nil {
		return err
	}
	defer func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	}()
	if err := until(ctx, time.Minute, func() bool { _, err := get(ctx, "/readyz"); return err == nil }); err != nil {
		return fmt.Errorf("waiting for %d services to be served: %w", services, err)
	}
	ready := time.Since(began)
	memory, err := peakMemory(command.Process.Pid)
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range changes {
		time.Sleep(quiet) // otherwise the next change would wait for sync.min_interval, which is not measured
		before, count, err := programming(ctx)
		if err != nil {
			return err
		}
		if err := writeService(dir, i, 9); err != nil {
			return err
		}
		var after float64
		if err := until(ctx, 10*time.Second, func() bool {
			sum, n, err := programming(ctx)
			after = sum
			return err == nil && n > count
		}); err != nil {
			return fmt.Errorf("waiting for a changed file: %w", err)
		}
		took = append(took, time.Duration((after-before)*float64(time.Second)))
	}
	slices.Sort(took)
	fmt.Printf("\n%d services x 10 endpoints in as many files: served %.1f s after the start, %d MiB at most; one changed file served %.1f ms after it was noticed (median of %d, worst %.1f ms)\n",
		services, ready.Seconds(), memory>>20, milli(took[len(took)/2]), changes, milli(took[len(took)-1]))
	return nil
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quiet is a pause between changes that is longer than sync.min_interval.
const quiet = 300 * time.Millisecond

// definitionsWeb is the address of the measured daemon's api.http.
const definitionsWeb = "127.0.0.1:17104"

func writeDefinitions(dir string, services int) error {
	config := fmt.Sprintf(`mode = "userspace"
state_dir = "."
run_dir = "."
[store]
path = "services"
[api]
socket = "vipd.sock"
http = %q
[userspace]
intercept = "bind"
`, definitionsWeb)
	if err := os.Mkdir(filepath.Join(dir, "services"), 0o755); err != nil {
		return err
	}
	for i := range services {
		if err := writeService(dir, i, 10); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "vipd.toml"), []byte(config), 0o644)
}

// writeService writes the complete file of the i-th service.
func writeService(dir string, i, endpoints int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "[services.s%05d]\nvips = [\"127.%d.%d.%d\"]\nports = [{ port = 8080 }]\nendpoints = [\n", i, 70+i>>16, i>>8&255, i&255)
	for j := range endpoints {
		fmt.Fprintf(&b, "\t{ address = \"127.90.%d.%d\", port = %d },\n", i>>8&255, i&255, 9000+j)
	}
	b.WriteString("]\n")
	name := filepath.Join(dir, "services", fmt.Sprintf("s%05d.toml", i))
	if err := os.WriteFile(name+".new", []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// until calls done repeatedly until done returns true. It returns an error if that takes longer
// than within.
func until(ctx context.Context, within time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// get requests a page from the daemon's api.http, and returns its lines.
func get(ctx context.Context, path string) (lines []string, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+definitionsWeb+path, nil)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", path, r.Status)
	}
	in := bufio.NewScanner(r.Body)
	for in.Scan() {
		lines = append(lines, in.Text())
	}
	return lines, in.Err()
}

// programming returns the sum and the number of the daemon's programming times. A programming time
// is the time from noticing a change to serving it.
func programming(ctx context.Context) (sum float64, count int, err error) {
	lines, err := get(ctx, "/metrics")
	for _, l := range lines {
		if v, ok := strings.CutPrefix(l, "vipd_programming_duration_seconds_sum "); ok {
			sum, err = strconv.ParseFloat(v, 64)
		}
		if v, ok := strings.CutPrefix(l, "vipd_programming_duration_seconds_count "); ok {
			count, err = strconv.Atoi(v)
		}
	}
	return sum, count, err
}

// peakMemory returns the maximum resident memory of a process, from proc_pid_status(5).
func peakMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("the kernel does not tell a process's peak memory")
}
