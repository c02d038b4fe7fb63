package accesslog

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// TestIdleFileIsClosed stops writing to a file that no service names. The file must be closed, and
// must be opened again for the next line.
func TestIdleFileIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "log")
		none := func() (snap.Map[balancer.Name, *balancer.Service], <-chan struct{}) {
			return snap.Map[balancer.Name, *balancer.Service]{}, nil
		}
		ends := make(chan struct{})
		l := New(Options{Default: path, Services: none, Log: slog.New(slog.DiscardHandler), Follow: func(ctx context.Context, tell func(bool, *dataplane.Connection), _ func(uint64)) error {
			for {
				select {
				case <-ends:
					tell(false, &dataplane.Connection{Service: "web"})
				case <-ctx.Done():
					return nil
				}
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.Run(ctx); close(ended) }()
		for range 2 {
			ends <- struct{}{}
			synctest.Wait()
			if !isOpen(t, path) {
				t.Error("just after a write: file is open = false, want true")
			}
			time.Sleep(2 * idleTime)
			synctest.Wait()
			if isOpen(t, path) {
				t.Errorf("%s after the last write: file is open = true, want false", 2*idleTime)
			}
		}
		cancel()
		<-ended
	})
}

// TestTornLineRests calls rest on an idle file whose last write ended in the middle of a line. The
// next entry must still start on a new line.
func TestTornLineRests(t *testing.T) {
	f := &file{path: filepath.Join(t.TempDir(), "log")}
	defer f.close()
	write := func(s string) {
		if _, err := f.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	write("torn")
	f.torn, f.looked = f.half, time.Time{} // as if the disk had been full long ago
	f.rest()
	write("next\n")
	if text, err := os.ReadFile(f.path); err != nil || string(text) != "torn\nnext\n" {
		t.Errorf("file = %q, %v, want \"torn\" and \"next\" on two lines", text, err)
	}
}

func isOpen(t *testing.T, path string) bool {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); to == path {
			return true
		}
	}
	return false
}
