package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/program"
)

// BenchmarkFlush deletes all rules of nf_tables b.N times, with pauses. It reports the effect on
// clients: how many requests per second are refused or unanswered, and the time from the first to
// the last such request. docs/performance.md has the results with -benchtime 50x on an idle
// machine.
func BenchmarkFlush(b *testing.B) {
	lab.Require(b)
	for _, mode := range []string{"nftables", "iptables", "userspace"} {
		for _, services := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%s/services=%d", mode, services), func(b *testing.B) {
				lab.Need(b, "nft")
				g := newPlainGateway(b)
				g.writeFew(settings(mode, "nft"), services)
				g.log = slog.New(slog.DiscardHandler)
				g.start()
				var holes holes
				for b.Loop() {
					holes.flush(g)
				}
				holes.report(b)
			})
		}
	}
}

// writeFew writes the configuration with additional services that have no clients.
func (g *gateway) writeFew(settings string, services int) {
	g.t.Helper()
	g.write(settings, 0, 1)
	text, err := os.ReadFile(g.file)
	if err != nil {
		g.t.Fatal(err)
	}
	var more strings.Builder
	for i := 1; i < services; i++ {
		fmt.Fprintf(&more, "[services.s%d]\nvips = [\"10.97.%d.%d\"]\nports = [{ port = 80 }]\nendpoints = [{ address = \"10.2.0.2\" }]\n", i, i/250, i%250+1)
	}
	program.Save(g.t, g.file, string(append(text, more.String()...)))
}

// holes records the requests that fail because of flushes.
type holes struct {
	mu                        sync.Mutex // guards the counts
	requests, refused, silent int
	lengths                   []time.Duration // for each flush, the time from the first to the last failed request
}

const (
	// beforeFlush and afterFlush are how long clients send requests before and after a flush.
	// afterFlush is longer than the interval at which vipd checks the kernel.
	beforeFlush, afterFlush = 100 * time.Millisecond, 1500 * time.Millisecond
	askers                  = 4
	askEvery                = 4 * time.Millisecond
	askWithin               = time.Second
)

// flush deletes all rules once, while clients send requests.
func (h *holes) flush(g *gateway) {
	ctx, cancel := context.WithTimeout(g.t.Context(), beforeFlush+afterFlush)
	defer cancel()
	var first, last time.Time // when the first and the last failed request started
	var all sync.WaitGroup
	for range askers {
		all.Go(func() {
			for tick := time.NewTicker(askEvery); ctx.Err() == nil; <-tick.C {
				err := h.ask(g)
				h.mu.Lock()
				if now := time.Now(); err != nil {
					last = now
					if first.IsZero() {
						first = now
					}
				}
				h.mu.Unlock()
			}
		})
	}
	time.Sleep(beforeFlush) // clients send requests before the flush
	out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
	all.Wait()
	if err != nil {
		g.t.Fatalf("nft flush: error = %v: %s", err, out)
	}
	h.lengths = append(h.lengths, last.Sub(first))
}

func (h *holes) ask(g *gateway) error {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	c, err := g.client.Dial(ctx, "tcp", "10.96.0.10:80")
	if err == nil {
		_, err = lab.AskWithin(c, askWithin)
		_ = c.(*net.TCPConn).SetLinger(0) // avoids TIME_WAIT, so the client does not run out of ports
		_ = c.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests++
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		h.silent++
		return nil // the timeout expires long after the rules have been restored
	case err != nil:
		h.refused++
	}
	return err
}

func (h *holes) report(b *testing.B) {
	slices.Sort(h.lengths)
	at := func(percent int) float64 {
		return h.lengths[(len(h.lengths)*percent+99)/100-1].Seconds() * 1000
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(at(50), "p50-ms")
	b.ReportMetric(at(99), "p99-ms")
	b.ReportMetric(float64(h.requests), "requests")
	b.ReportMetric(float64(h.refused), "refused")
	b.ReportMetric(float64(h.silent), "unanswered")
}
