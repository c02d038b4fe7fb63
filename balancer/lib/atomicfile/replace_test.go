package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReplace replaces a file through a symbolic link. The file must then have the new text and its
// old mode, and the link must remain. If the file is missing, Replace must return an error.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := Replace(path, nil); err == nil {
		t.Error("Replace of a missing file = nil, want an error")
	}
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Skip("no symbolic links: ", err)
	}
	if err := Replace(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	after, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(link)
	if err != nil || string(text) != "new" || after.Mode() != before.Mode() || os.SameFile(before, after) {
		t.Errorf("text = %q, %v; mode = %s, want the new text and mode %s; same file as before = %v, want false", text, err, after.Mode(), before.Mode(), os.SameFile(before, after))
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("entries = %v, %v; want a file and a link", entries, err)
	}
}
