package store

import (
	"bufio"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestKeeperTriesAgain: what could not be written is told once, and written as soon as it can be, the newest of it.
func TestKeeperTriesAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	told := make(chan string, 10)
	log := slog.New(slog.NewTextHandler(lines(told), nil))
	k := NewKeeper(dir, "x.state", "x", log, func(w *bufio.Writer, s string) error { _, err := w.WriteString(s); return err })
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	k.Keep("old")
	k.Keep("good")
	go func() { k.Run(ctx); close(ended) }()
	<-told
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	end()
	<-ended
	if text, err := os.ReadFile(k.Path); string(text) != "good" || len(told) > 0 {
		t.Errorf("kept is %q, %v; told %d times more", text, err, len(told))
	}
}

// lines passes on what is written.
type lines chan string

func (l lines) Write(b []byte) (int, error) { l <- string(b); return len(b), nil }
