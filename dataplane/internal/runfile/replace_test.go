package runfile

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplace has readers see the old text until the new one is whole, in a folder that is made, and leaves nothing beside
// the file, also where it fails.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "file")
	old := ""
	for _, text := range []string{"one", "", strings.Repeat("two\n", 100_000)} {
		err := Replace(path, func(w *bufio.Writer) {
			_, _ = w.WriteString(text[:len(text)/2])
			if got, _ := os.ReadFile(path); string(got) != old {
				t.Errorf("halfway there are %d bytes, want the old %d", len(got), len(old))
			}
			_, _ = w.WriteString(text[len(text)/2:])
		})
		if got, readErr := os.ReadFile(path); err != nil || readErr != nil || string(got) != text {
			t.Fatalf("%v, %v: %d bytes, want %d", err, readErr, len(got), len(text))
		}
		old = text
	}
	folder := filepath.Join(filepath.Dir(path), "folder")
	if err := os.MkdirAll(filepath.Join(folder, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(folder, func(*bufio.Writer) {}); err == nil {
		t.Error("a file took the place of a folder")
	}
	if err := Replace(filepath.Join(path, "below"), func(*bufio.Writer) {}); err == nil {
		t.Error("a file has another below it")
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v; want a file and a folder", entries, err)
	}
}
