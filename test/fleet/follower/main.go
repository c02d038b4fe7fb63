package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/watch"
	"vipd/store/statedir"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "follower:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	f := flag.NewFlagSet("follower", flag.ContinueOnError)
	endpoints := f.String("endpoints", "", "`URLs` of etcd, with commas between them")
	prefix := f.String("prefix", "/vipd", "what all keys begin with")
	stateDir := f.String("state-dir", "", "`FOLDER` that the one source keeps its state in")
	number := f.Int("sources", 1, "how many follow")
	if err := f.Parse(args); err != nil {
		return err
	}
	var kept *statedir.Dir
	if *stateDir != "" {
		kept = statedir.New(*stateDir, func() {})
	}
	var crowd followers
	for i := range *number {
		source, err := watch.New(watch.Options{
			Config: client.Config{Endpoints: strings.Split(*endpoints, ","), Prefix: *prefix}, StateDir: kept, Node: fmt.Sprint("n", i),
		})
		if err != nil {
			return err
		}
		crowd = append(crowd, &follower{source: source})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	began := time.Now()
	for _, f := range crowd {
		running.Go(func() { _ = f.source.Watch(ctx, f.publish) }) // Watch fails only if it already runs
	}
	crowd.await(1)
	if _, err := fmt.Fprintln(out, "first", crowd.firstSince(began).Nanoseconds()); err != nil {
		return err
	}
	return crowd.answer(in, out)
}

// follower is a source and the snapshots that it has published.
type follower struct {
	source *watch.Source

	mu      sync.Mutex // guards the fields below
	first   time.Time
	samples []sample
	last    store.Snapshot // a daemon also keeps the last snapshot in memory
}

type sample struct {
	revision int64
	at       time.Time
}

func (f *follower) publish(s store.Snapshot) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = s
	if !s.Connected {
		return
	}
	if f.first.IsZero() {
		f.first = now
	}
	f.samples = append(f.samples, sample{s.Revision, now})
}

type followers []*follower

// await returns when every source has received all changes up to a revision.
func (c followers) await(revision int64) {
	for _, f := range c {
		for f.source.Position().Seen < revision || f.never() {
			time.Sleep(time.Millisecond) // interval of polls
		}
	}
}

// never reports whether the source has yet to receive a complete state.
func (f *follower) never() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first.IsZero()
}

func (c followers) firstSince(began time.Time) (longest time.Duration) {
	for _, f := range c {
		f.mu.Lock()
		longest = max(longest, f.first.Sub(began))
		f.mu.Unlock()
	}
	return longest
}

// answer answers requests until EOF.
func (c followers) answer(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		w := bufio.NewWriter(out)
		switch verb, argument, _ := strings.Cut(lines.Text(), " "); verb {
		case "reach":
			revision, err := strconv.ParseInt(argument, 10, 64)
			if err != nil {
				return err
			}
			c.await(revision)
			fmt.Fprintln(w, "reached")
		case "samples":
			c.printSamples(w)
		case "heap":
			runtime.GC()
			runtime.GC() // run twice, because the first collection leaves objects in sync.Pool
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			fmt.Fprintln(w, "heap", m.HeapAlloc)
		default:
			return fmt.Errorf("%q is no question", verb)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (c followers) printSamples(w io.Writer) {
	all := make([][]sample, len(c))
	n := 0
	for i, f := range c {
		f.mu.Lock()
		all[i], f.samples = f.samples, nil
		f.mu.Unlock()
		n += len(all[i])
	}
	fmt.Fprintln(w, "samples", n)
	for i, samples := range all {
		for _, s := range samples {
			fmt.Fprintln(w, i, s.revision, s.at.UnixNano())
		}
	}
}
