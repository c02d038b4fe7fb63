package fleet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// prefix is the prefix of all keys.
const prefix = "/vipd"

func buildFollower(t testing.TB) string {
	t.Helper()
	return filepath.Join(program.Build(t, "./test/fleet/follower"), "follower")
}

// follower is a running program of test/fleet/follower.
type follower struct {
	t     testing.TB
	pid   int
	first time.Duration // time until every source had the complete first state

	in   io.Writer
	out  *bufio.Scanner
	stop func() // stops the program, and waits until it has exited
}

// follow starts the program, and waits until all sources have the first state. The program runs
// until the test ends or stop is called.
func follow(t testing.TB, binary string, endpoints []string, args ...string) *follower {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"-endpoints", strings.Join(endpoints, ","), "-prefix", prefix}, args...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, pid: cmd.Process.Pid, in: in, out: bufio.NewScanner(out)}
	timer := time.AfterFunc(wait.Bound(10*time.Minute), func() { _ = cmd.Process.Kill() }) // fails the test if a source hangs
	f.stop = sync.OnceFunc(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil && timer.Stop() {
			t.Errorf("follower: %v", err)
		}
		timer.Stop()
	})
	t.Cleanup(f.stop)
	var nanos int64
	f.line("first %d", &nanos)
	f.first = time.Duration(nanos)
	return f
}

// line reads an answer and parses it with format.
func (f *follower) line(format string, into ...any) {
	f.t.Helper()
	if !f.out.Scan() {
		f.t.Fatalf("reading from the follower: error = %v, want an answer", f.out.Err())
	}
	if _, err := fmt.Sscanf(f.out.Text(), format, into...); err != nil {
		f.t.Fatalf("follower: output = %q, error = %v, want an answer", f.out.Text(), err)
	}
}

func (f *follower) ask(question string) {
	f.t.Helper()
	if _, err := fmt.Fprintln(f.in, question); err != nil {
		f.t.Fatalf("asking the follower: %v", err)
	}
}

// reach waits until every source has received all changes up to a revision.
func (f *follower) reach(revision int64) {
	f.t.Helper()
	f.ask(fmt.Sprint("reach ", revision))
	f.line("reached")
}

func (f *follower) heap() (bytes int64) {
	f.t.Helper()
	f.ask("heap")
	f.line("heap %d", &bytes)
	return bytes
}

// delays returns the time from each put until each source received it.
func (f *follower) delays(puts *puts) (all spread) {
	f.t.Helper()
	f.ask("samples")
	var n int
	f.line("samples %d", &n)
	bySource := map[int][]sample{}
	for range n {
		var source int
		var s sample
		f.line("%d %d %d", &source, &s.revision, &s.at)
		bySource[source] = append(bySource[source], s)
	}
	for _, samples := range bySource {
		for revision, put := range puts.began {
			for _, s := range samples { // samples are in order
				if s.revision >= revision {
					all = append(all, time.Duration(s.at-put.UnixNano()))
					break
				}
			}
		}
	}
	if want := len(bySource) * len(puts.began); len(all) != want {
		f.t.Errorf("received changes = %d, want %d", len(all), want)
	}
	return all
}

// sample is a snapshot: its revision, and its publication in nanoseconds since 1970.
type sample struct {
	revision, at int64
}

// puts has the start times of changes at a steady pace.
type puts struct {
	mu    sync.Mutex
	began map[int64]time.Time // key: revision
	last  int64
	took  spread
}

// change makes n changes at a fixed pace, without waiting for earlier changes. keyValue returns the
// key and value of the i-th change.
func change(t testing.TB, client *clientv3.Client, n int, pace time.Duration, keyValue func(i int) (key, value string)) *puts {
	t.Helper()
	p := &puts{began: map[int64]time.Time{}}
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range n {
		<-ticker.C
		all.Go(func() {
			key, value := keyValue(i)
			ctx, cancel := context.WithTimeout(context.Background(), wait.Patience)
			defer cancel()
			began := time.Now()
			answer, err := client.Put(ctx, key, value)
			if err != nil {
				t.Errorf("put %s: %v", key, err)
				return
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.began[answer.Header.Revision] = began
			p.last = max(p.last, answer.Header.Revision)
			p.took = append(p.took, time.Since(began))
		})
	}
	return p
}

// fill writes services whose endpoints have their own keys.
func fill(t testing.TB, client *clientv3.Client, services, endpoints int) {
	t.Helper()
	const writers = 4
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			var ops []clientv3.Op
			flush := func() {
				if _, err := client.Txn(context.Background()).Then(ops...).Commit(); err != nil {
					t.Error(err)
				}
				ops = ops[:0]
			}
			for i := w; i < services; i += writers {
				ops = append(ops, clientv3.OpPut(serviceKey(i), serviceText(i)))
				for j := range endpoints {
					ops = append(ops, clientv3.OpPut(endpointKey(i, j), endpointText(i, j, 1)))
				}
				if len(ops) > 100 {
					flush()
				}
			}
			flush()
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func serviceKey(i int) string { return fmt.Sprintf("%s/services/service-%05d", prefix, i) }

func serviceText(i int) string {
	return fmt.Sprintf(`{"vips":["10.%d.%d.%d"],"ports":[{"port":80,"target_port":8080}]}`, 100+i>>16, i>>8&255, i&255)
}

func endpointKey(i, j int) string {
	return fmt.Sprintf("%s/endpoints/service-%05d/%d", prefix, i, j)
}

func endpointText(i, j, weight int) string {
	return fmt.Sprintf(`{"address":"172.%d.%d.%d","port":8080,"zone":"z%d","weight":%d}`, 16+j, i>>8, i&255, j%3, weight)
}
