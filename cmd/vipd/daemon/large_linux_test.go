package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestAnswersWithTenThousandServices requests every view of 10,000 services with ten endpoints
// each. A request may use a second of CPU time, or three on a busy machine. A hundred browsers on
// the page may use 5 % of a CPU, or 25 % on a busy machine. Both limits include the client's own
// work. With the race detector, the test has a fifth of the services and twice the time.
func TestAnswersWithTenThousandServices(t *testing.T) {
	services, most := wait.Load(10_000), 3*time.Second
	if wait.Race {
		services, most = services/5, 2*most
	}
	n := startNode(t, large(services))
	ctx := t.Context()
	for what, ask := range map[string]func() error{
		"status":  func() error { _, err := n.client.Status(ctx); return err },
		"traffic": func() error { _, err := n.client.Traffic(ctx); return err },
		"top":     func() error { _, err := n.client.TrafficOf(ctx, ""); return err },
		"conns":   func() error { _, err := n.client.Connections(ctx, dataplane.ConnectionQuery{}); return err },
		"page":    n.requestPage("/"),
		"service": n.requestPage("/services/s7"),
		"scrape":  n.scrape,
		"health":  n.requestPage("/healthz"),
	} {
		wait.For(t, 0, fmt.Sprintf("%s to use %s of a core at most", what, most), func() bool { // includes the CPU time that everything else in this process uses
			used := processTime(t)
			n.retry(what, ask)
			used = processTime(t) - used
			t.Logf("%s takes %s of a core", what, used)
			return used <= most
		})
	}
	const browsers, share = 100, 0.25
	gone, leave := context.WithCancel(ctx)
	defer leave()
	for range browsers {
		q, err := http.NewRequestWithContext(gone, http.MethodGet, "http://"+n.daemon.Web().String()+"/live?follow=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		go func() { _, _ = io.Copy(io.Discard, r.Body) }() // the copy stops when leave closes the connection
	}
	cost := 0.0
	wait.For(t, 0, "a hundred browsers to cost less than 25 % of a core", func() bool {
		began, used := time.Now(), processTime(t)
		time.Sleep(5 * time.Second) // the measured interval
		cost = float64(processTime(t)-used) / float64(time.Since(began))
		t.Logf("%.1f %% of a core", 100*cost)
		return cost < share
	})
}

// scrape reads the metrics as Prometheus does, but does not decompress them.
func (n *node) scrape() error {
	q, err := http.NewRequest(http.MethodGet, "http://"+n.daemon.Web().String()+"/metrics", nil)
	if err != nil {
		return err
	}
	q.Header.Set("Accept-Encoding", "gzip")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	size, err := io.Copy(io.Discard, r.Body)
	if err == nil && (r.StatusCode != http.StatusOK || size < 1<<16) {
		err = fmt.Errorf("%s, %d bytes", r.Status, size)
	}
	return err
}

func processTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// inTime retries a request until an answer arrives within a second. A busy machine may delay an
// answer once, but a request that waits for the kernel is late every time.
func inTime(t *testing.T, what string, ask func() error) {
	t.Helper()
	lab.Eventually(t, 0, what, func() error {
		began := time.Now()
		err := ask()
		if took := time.Since(began); err == nil && took > wait.Scaled(time.Second) {
			err = fmt.Errorf("answer took %s, want at most a second, or more on a slow machine", took)
		}
		return err
	})
}

// requestPage returns a function that requests a page of api.http.
func (n *node) requestPage(path string) func() error {
	return func() error {
		if code, text := n.get(path); code != http.StatusOK {
			return fmt.Errorf("answer of %s = %d, want 200: %s", path, code, text)
		}
		return nil
	}
}
