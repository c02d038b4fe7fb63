package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeSource is a source of invented kernels.
type fakeSource struct {
	latest   string
	away     error // the error that newest returns
	broken   error // the error that unpack returns after it has written a file
	unpacked atomic.Int32
}

func (s *fakeSource) newest(context.Context) (string, error) { return s.latest, s.away }

func (s *fakeSource) unpack(_ context.Context, name, into string) error {
	s.unpacked.Add(1)
	for _, file := range []string{"vmlinuz", "modules"} {
		if err := os.WriteFile(filepath.Join(into, file), []byte(name), 0o600); err != nil {
			return err
		}
		if s.broken != nil {
			return s.broken
		}
	}
	return nil
}

// wantComplete fails the test unless the directory has the complete kernel.
func wantComplete(t *testing.T, folder, name string) {
	t.Helper()
	for _, file := range []string{"vmlinuz", "modules"} {
		if text, err := os.ReadFile(filepath.Join(folder, file)); err != nil || string(text) != name {
			t.Errorf("cached %s = %q (%v), want %q", file, text, err, name)
		}
	}
}

func TestAKernelIsUnpackedOnce(t *testing.T) {
	s := &fakeSource{latest: "linux_1"}
	dir := filepath.Join(t.TempDir(), "not", "there")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			c := cache{dir, s, t.Logf}
			folder, release, err := c.kernel(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			wantComplete(t, folder, "linux_1")
		})
	}
	all.Wait()
	if n := s.unpacked.Load(); n != 1 {
		t.Errorf("times unpacked = %d, want 1", n)
	}
}

func TestAHalfMadeKernelIsNotUsed(t *testing.T) {
	s := &fakeSource{latest: "linux_1", broken: errors.New("the line is dead")}
	c := cache{t.TempDir(), s, t.Logf}
	if _, _, err := c.kernel(t.Context()); !errors.Is(err, s.broken) {
		t.Fatalf("broken download: error = %v, want %v", err, s.broken)
	}
	if left := c.folders(); len(left) > 0 {
		t.Errorf("after a broken download: folders = %q, want none", left)
	}
	killed := filepath.Join(c.dir, unfinished+"123") // as a killed process leaves it
	if err := os.Mkdir(killed, 0o700); err != nil {
		t.Fatal(err)
	}
	s.broken = nil
	folder, release, err := c.kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	wantComplete(t, folder, "linux_1")
	if got := c.folders(); !slices.Equal(got, []string{"linux_1"}) {
		t.Errorf("cached folders = %q, want only the kernel", got)
	}
}

func TestANewKernelReplacesTheOldOnceNobodyUsesIt(t *testing.T) {
	s := &fakeSource{}
	c := cache{t.TempDir(), s, t.Logf}
	var release func()
	for i, want := range [][]string{{"linux_1"}, {"linux_1", "linux_2"}, {"linux_3"}} {
		s.latest = fmt.Sprintf("linux_%d", i+1)
		folder, done, err := c.kernel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantComplete(t, folder, s.latest)
		if got := c.folders(); !slices.Equal(got, want) {
			t.Errorf("cached folders with %s = %q, want %q", s.latest, got, want)
		}
		if i == 0 {
			release = done // a guest still uses the first kernel while the second is added
			continue
		}
		done()
		if i == 1 {
			release()
		}
	}
}

func TestWithoutAnAnswerTheLastKernelIsUsed(t *testing.T) {
	s := &fakeSource{away: errors.New("no list of packages")}
	c := cache{t.TempDir(), s, t.Logf}
	if err := os.Mkdir(filepath.Join(c.dir, unfinished+"1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.kernel(t.Context()); !errors.Is(err, s.away) {
		t.Fatalf("empty cache without a source: error = %v, want %v", err, s.away)
	}
	for name, age := range map[string]time.Duration{"linux_10": 0, "linux_9": time.Hour} {
		folder := filepath.Join(c.dir, name)
		if err := errors.Join(os.Mkdir(folder, 0o700), s.unpack(t.Context(), name, folder)); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(folder, at, at); err != nil {
			t.Fatal(err)
		}
	}
	folder, release, err := c.kernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	wantComplete(t, folder, "linux_10")
}

func TestWaitingForTheCacheEndsWithTheContext(t *testing.T) {
	c := cache{t.TempDir(), &fakeSource{latest: "linux_1"}, t.Logf}
	unlock, err := lock(t.Context(), filepath.Join(c.dir, lockName), unix.LOCK_EX) // another process holds the lock while it downloads
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := c.kernel(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked cache: error = %v, want a deadline error", err)
	}
}
