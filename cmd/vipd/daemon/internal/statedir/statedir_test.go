package statedir

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// note is a file's content.
type note struct {
	Version int    `json:"version"`
	Text    string `json:"text"`
}

// TestFilesOutlive: what was written is read again, whole; what can't be read is set aside, and stays so until a write; and
// an outcome is told when it is another than the last one.
func TestFilesOutlive(t *testing.T) {
	path := t.TempDir()
	told := 0
	d := New(path, func() { told++ })
	var got note
	if d.Read("a.json", &got) || told > 0 {
		t.Errorf("a file that is not there: %+v, told %d times", got, told)
	}
	d.Note("a.json", d.Write("a.json", note{Version, "first"}))
	if !d.Read("a.json", &got) || got.Text != "first" || len(d.Problems()) > 0 {
		t.Errorf("read %+v, problems %v", got, d.Problems())
	}
	for name, text := range map[string]string{"torn": "{", "of the future": fmt.Sprintf(`{"version": %d}`, Version+1)} {
		if err := os.WriteFile(filepath.Join(path, "a.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if d.Read("a.json", &note{}) {
			t.Errorf("a file that is %s was read", name)
		}
		if kept, err := os.ReadFile(filepath.Join(path, "a.json.broken")); err != nil || string(kept) != text {
			t.Errorf("%s: set aside is %q, %v", name, kept, err)
		}
		if p := d.Problems(); len(p) != 1 || p[0].Field != "state_dir" {
			t.Errorf("%s: problems %v", name, p)
		}
	}
	d.Note("a.json", d.Write("a.json", note{Version, "second"}))
	if !d.Read("a.json", &got) || got.Text != "second" || len(d.Problems()) > 0 {
		t.Errorf("after a write: read %+v, problems %v", got, d.Problems())
	}
	gone := New(filepath.Join(path, "gone"), func() { told++ })
	before := told
	for range 3 {
		gone.Note("a.json", gone.Write("a.json", note{Version, "lost"}))
	}
	if before != 1 || told != before+1 || len(gone.Problems()) != 1 {
		t.Errorf("told %d times, problems %v", told, gone.Problems())
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 {
		t.Errorf("left in the folder: %v, %v", entries, err)
	}
}
