package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// sizes configures the amount of work in a round.
type sizes struct {
	bulk        int64 // bytes of one bulk transfer
	connections int   // new connections
	requests    int   // requests on persistent connections
	clients     int   // concurrent clients
	services    int   // number of defined services
}

func main() {
	vipd := flag.String("vipd", "bin/vipd", "the daemon's binary")
	other := flag.String("other", "", "the binary of another build of vipd, to compare with")
	rounds := flag.Int("rounds", 5, "how often everything is measured")
	quick := flag.Bool("quick", false, "a hundredth of the work, to see that it runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := sizes{bulk: 4 << 30, connections: 20_000, requests: 200_000, clients: 32, services: 10_000}
	if *quick {
		s = sizes{bulk: 64 << 20, connections: 400, requests: 2_000, clients: 8, services: 100}
	}
	err := run(ctx, *vipd, *other, *rounds, s)
	if err == nil {
		err = definitions(ctx, *vipd, s.services, 5)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// run measures each proxy in each round, and prints the table.
func run(ctx context.Context, vipd, other string, rounds int, s sizes) error {
	backend, err := startBackend()
	if err != nil {
		return err
	}
	defer backend.close()
	dir, err := os.MkdirTemp("", "vipd-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	proxies, missing, err := startAll(ctx, dir, vipd, other, backend.address)
	defer func() {
		for _, p := range proxies {
			p.stop()
		}
	}()
	if err != nil {
		return err
	}
	for _, m := range missing {
		fmt.Println("not measured:", m)
	}
	results := map[string][]result{}
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
		for i := range proxies {
			p := proxies[(i+round)%len(proxies)] // the direct connection is always first
			r, err := measure(ctx, p, s)
			if err != nil {
				return fmt.Errorf("measuring %s: %w", p.name, err)
			}
			results[p.name] = append(results[p.name], r)
		}
	}
	printTable(proxies, results)
	return nil
}

// result has the figures for one proxy in one round. CPU times are the proxy's.
type result struct {
	bulk1, bulk4               float64 // gigabits per second
	bulkCPU                    float64 // seconds per gigabyte
	connections, connectionCPU float64 // connections per second; microseconds per connection
	requests, requestCPU       float64
	p50, p99                   time.Duration
}

func measure(ctx context.Context, p *proxy, s sizes) (r result, err error) {
	cpu, took, err := p.during(func() error { return bulk(ctx, p.address, 1, s.bulk) })
	if err != nil {
		return r, err
	}
	r.bulk1 = gigabits(s.bulk, took)
	cpu4, took, err := p.during(func() error { return bulk(ctx, p.address, 4, s.bulk) })
	if err != nil {
		return r, err
	}
	r.bulk4, r.bulkCPU = gigabits(s.bulk, took), (cpu+cpu4).Seconds()/(2*float64(s.bulk)/1e9)
	cpu, took, err = p.during(func() error { return connect(ctx, p.address, s.clients, s.connections) })
	if err != nil {
		return r, err
	}
	r.connections, r.connectionCPU = float64(s.connections)/took.Seconds(), micros(cpu, s.connections)
	var latencies []time.Duration
	cpu, took, err = p.during(func() (err error) {
		latencies, err = request(ctx, p.address, s.clients, s.requests)
		return err
	})
	if err != nil {
		return r, err
	}
	r.requests, r.requestCPU = float64(s.requests)/took.Seconds(), micros(cpu, s.requests)
	slices.Sort(latencies)
	r.p50, r.p99 = latencies[len(latencies)/2], latencies[len(latencies)*99/100]
	return r, nil
}

func gigabits(bytes int64, took time.Duration) float64 {
	return float64(bytes) * 8 / 1e9 / took.Seconds()
}

func micros(cpu time.Duration, n int) float64 { return float64(cpu.Microseconds()) / float64(n) }

// columns lists the table's columns. Each has a name, and a function that returns its value for a
// round.
var columns = []struct {
	name   string
	format string
	of     func(result) float64
}{
	{"1 stream, Gbit/s", "%.1f", func(r result) float64 { return r.bulk1 }},
	{"4 streams, Gbit/s", "%.1f", func(r result) float64 { return r.bulk4 }},
	{"CPU s/GB", "%.2f", func(r result) float64 { return r.bulkCPU }},
	{"connections/s", "%.0f", func(r result) float64 { return r.connections }},
	{"CPU us/connection", "%.0f", func(r result) float64 { return r.connectionCPU }},
	{"requests/s", "%.0f", func(r result) float64 { return r.requests }},
	{"CPU us/request", "%.1f", func(r result) float64 { return r.requestCPU }},
	{"p50 us", "%.0f", func(r result) float64 { return float64(r.p50.Microseconds()) }},
	{"p99 us", "%.0f", func(r result) float64 { return float64(r.p99.Microseconds()) }},
}

// printTable prints the medians, and the ratio of CPU times to HAProxy's.
func printTable(proxies []*proxy, results map[string][]result) {
	fmt.Print("\n| |")
	for _, p := range proxies {
		fmt.Printf(" %s |", p.name)
	}
	fmt.Println("\n|" + strings.Repeat("---|", len(proxies)+1))
	for _, c := range columns {
		fmt.Printf("| %s |", c.name)
		base := median(results["HAProxy"], c.of)
		for _, p := range proxies {
			m := median(results[p.name], c.of)
			text := fmt.Sprintf(c.format, m)
			if strings.HasPrefix(c.name, "CPU") && base > 0 && m > 0 {
				text += fmt.Sprintf(" (%.2f x)", m/base)
			}
			fmt.Printf(" %s |", text)
		}
		fmt.Println()
	}
}

func median(rounds []result, of func(result) float64) float64 {
	if len(rounds) == 0 {
		return 0
	}
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
