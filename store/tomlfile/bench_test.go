package tomlfile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vipd/store"
)

func fleet(b *testing.B, files, perFile int) (dir string) {
	b.Helper()
	dir = b.TempDir()
	for f := range files {
		var text strings.Builder
		for i := range perFile {
			text.WriteString(fleetService(f*perFile+i, 1))
		}
		write(b, filepath.Join(dir, fmt.Sprintf("%05d.toml", f)), text.String())
	}
	return dir
}

func fleetService(n, weight int) string {
	var text strings.Builder
	fmt.Fprintf(&text, "[services.s%d]\nvips = [\"10.%d.%d.%d\"]\nports = [{ name = \"http\", port = 80, target_port = 8080 }]\n",
		n, 96+n>>16, n>>8&255, n&255)
	text.WriteString("health = { type = \"http\", path = \"/healthz\", interval = \"2s\" }\nscheduler = \"wlc\"\nendpoints = [\n")
	for e := range 10 {
		fmt.Fprintf(&text, "  { address = \"192.168.%d.%d\", weight = %d, zone = \"z%d\" },\n", n&255, e+1, weight, e%3)
	}
	text.WriteString("]\n\n")
	return text.String()
}

// peak samples the memory in use. The function stop ends the sampling, and returns the maximum in
// MiB.
func peak() (stop func() float64) {
	var most atomic.Uint64
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse+m.StackInuse))
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() float64 {
		close(end)
		<-done
		return float64(most.Load()) / (1 << 20)
	}
}

// BenchmarkLoad loads 10,000 services with 10 endpoints each, from different numbers of files.
func BenchmarkLoad(b *testing.B) {
	for _, files := range []int{1, 1_000, 10_000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			dir := fleet(b, files, 10_000/files)
			runtime.GC()
			stop := peak()
			for b.Loop() {
				l := newLoader("", dir)
				l.load(look{all: true})
				if l.state.Services.Len() != 10_000 || len(l.state.Problems) > 0 {
					b.Fatalf("services = %d, problems = %v, want 10000 and none", l.state.Services.Len(), l.state.Problems)
				}
			}
			b.ReportMetric(stop(), "MiB-peak")
		})
	}
}

// BenchmarkChange changes one of many files and waits for the snapshot. Each measurement includes
// the 20 ms for which the source waits for more changes.
func BenchmarkChange(b *testing.B) {
	for _, files := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			dir := fleet(b, files, 10_000/files)
			ctx, cancel := context.WithCancel(b.Context())
			published, done := make(chan store.Snapshot, 1), make(chan error)
			go func() {
				s := New(Options{})
				s.loader = newLoader("", dir)
				done <- s.Watch(ctx, func(s store.Snapshot) { published <- s })
			}()
			<-published
			weight := 1
			for b.Loop() {
				weight = 3 - weight
				path := filepath.Join(dir, "00500.toml.tmp")
				write(b, path, fleetService(500*(10_000/files), weight))
				if err := os.Rename(path, strings.TrimSuffix(path, ".tmp")); err != nil {
					b.Fatal(err)
				}
				<-published
			}
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkLook checks whether any of 10,000 files has changed, as each poll does.
func BenchmarkLook(b *testing.B) {
	dir := fleet(b, 10_000, 1)
	l := newLoader("", dir)
	l.load(look{all: true})
	for path, c := range l.merge.files {
		aged := *c
		aged.read = aged.read.Add(settled)
		l.merge.files[path] = &aged
	}
	for b.Loop() {
		if l.load(look{all: true}) {
			b.Fatal("load of unchanged files reported a change")
		}
	}
}

// BenchmarkLines parses the text of 10,000 services, and finds the line number of each service and
// field.
func BenchmarkLines(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		text.WriteString(fleetService(i, 1))
	}
	for depth, what := range []string{"everything", "", "services"} {
		if what == "" {
			continue
		}
		b.Run(what, func(b *testing.B) {
			b.SetBytes(int64(text.Len()))
			b.ReportAllocs()
			for b.Loop() {
				lines(text.String(), depth)
			}
		})
	}
	b.Run("fields", func(b *testing.B) {
		doc, _ := Parse("fleet.toml", []byte(text.String()))
		b.SetBytes(int64(text.Len()))
		b.ReportAllocs()
		for b.Loop() {
			doc.fieldLines()
		}
	})
}
