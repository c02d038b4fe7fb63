package convert

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDetect detects the format of each configuration in testdata. The detected format must be the
// name of the configuration's directory.
func TestDetect(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatalf("configurations = %d, error = %v, want at least one", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := filepath.Base(filepath.Dir(file))
		if name := filepath.Base(file); name == "include-only.conf" || name == "definition.conf" {
			want = "" // other programs include files and define variables in the same way
		}
		if got := Detect(text); got != want {
			t.Errorf("%s: Detect = %q, want %q", file, got, want)
		}
	}
	for _, text := range []string{"", "hello\n", "[services.web]\nvips = [\"10.96.0.10\"]\n"} {
		if got := Detect([]byte(text)); got != "" {
			t.Errorf("Detect(%q) = %q, want an empty string", text, got)
		}
	}
}
