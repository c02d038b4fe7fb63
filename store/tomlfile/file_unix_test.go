//go:build unix

package tomlfile

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vipd/test/wait"
)

// TestAPipeIsNeverWaitedFor repeatedly replaces a file with a named pipe and back, while the file
// is read. No read may block.
func TestAPipeIsNeverWaitedFor(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.toml")
	write(t, path, "x = 1\n")
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			for _, make := range []func(string) error{
				func(path string) error { return syscall.Mkfifo(path, 0o600) },
				func(path string) error { return os.WriteFile(path, []byte("x = 1\n"), 0o600) },
			} {
				if err := make(path + ".new"); err != nil {
					t.Error(err)
				}
				if err := os.Rename(path+".new", path); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	read := 0
	for begun, n := time.Now(), 0; n < 10000 || read == 0 && time.Since(begun) < wait.Patience; n++ {
		text, err := ReadFile(path)
		switch {
		case err == nil && string(text) == "x = 1\n":
			read++
		case err == nil || !strings.HasSuffix(err.Error(), ": not a regular file"):
			t.Errorf("ReadFile = %q, %v; want the file's text, or the error that it is not a regular file", text, err)
		}
	}
	close(stop)
	swapping.Wait()
	if read == 0 {
		t.Error("no read returned the file's text")
	}
}
