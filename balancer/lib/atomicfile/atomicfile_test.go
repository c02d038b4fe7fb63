package atomicfile

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWrite replaces a file several times, and then makes writes fail. Readers must see either the
// old text or the complete new text. No temporary file may remain.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "file")
	old := ""
	for _, text := range []string{"one", "", strings.Repeat("two\n", 100_000)} {
		err := Write(path, ThisBoot, func(w *bufio.Writer) error {
			_, _ = w.WriteString(text[:len(text)/2])
			if got, _ := os.ReadFile(path); string(got) != old {
				t.Errorf("bytes in the file during the write = %d, want the %d of the old text", len(got), len(old))
			}
			_, err := w.WriteString(text[len(text)/2:])
			return err
		})
		if got, readErr := os.ReadFile(path); err != nil || readErr != nil || string(got) != text {
			t.Fatalf("Write = %v, reading = %v: bytes in the file = %d, want %d", err, readErr, len(got), len(text))
		}
		old = text
	}
	folder := filepath.Join(filepath.Dir(path), "folder")
	if err := os.MkdirAll(filepath.Join(folder, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(folder, ThisBoot, func(*bufio.Writer) error { return nil }); err == nil {
		t.Error("Write to a folder's path = nil, want an error")
	}
	if err := Write(filepath.Join(path, "below"), ThisBoot, func(*bufio.Writer) error { return nil }); err == nil {
		t.Error("Write to a path below a file = nil, want an error")
	}
	failure := errors.New("the test's")
	if err := Write(path, ThisBoot, func(*bufio.Writer) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("after the function failed: Write = %v, want the function's error", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Errorf("entries = %v, %v; want a file and a folder", entries, err)
	}
}

// TestLeftoversOfKilledWrite creates temporary files, like processes that were killed in Write.
// Leftovers must return their names. They must not affect the next Write, and Remove must also
// delete the current version's temporary file.
func TestLeftoversOfKilledWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	half := func() {
		if err := os.WriteFile(path+tempSuffix, []byte(strings.Repeat("half", 1000)), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	half()
	left := []string{path + ".4294967295", path + tempSuffix, path + ".tmp-7"}
	for _, name := range []string{left[0], left[2], path + ".202611210000", path + ".tmp.bak", path + ".bak", path + "s.tmp"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := Leftovers(path); !slices.Equal(got, left) {
		t.Errorf("Leftovers() = %q, want %q", got, left)
	}
	if got := Leftovers(filepath.Join(dir, "none", "file")); len(got) > 0 {
		t.Errorf("Leftovers() in a missing folder = %q, want none", got)
	}
	if err := Write(path, Lasting, func(w *bufio.Writer) error { _, err := w.WriteString("new"); return err }); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("content = %q, %v; want \"new\"", got, err)
	}
	half()
	for range 2 {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{path, path + tempSuffix} {
		if _, err := os.Lstat(name); !os.IsNotExist(err) {
			t.Errorf("%s after Remove: %v, want no file", name, err)
		}
	}
}
