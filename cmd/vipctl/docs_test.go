package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocs has every TOML block of the guides and of vipd.toml(5) pass vipctl check.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range append(files, "../../packaging/man/settings.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, part := range strings.Split(string(text), "```toml\n") {
			block, _, closed := strings.Cut(part, "\n```")
			if i == 0 || !closed {
				continue
			}
			checked++
			t.Run(fmt.Sprintf("%s, block %d", filepath.Base(file), i), func(t *testing.T) {
				config := filepath.Join(t.TempDir(), "vipd.toml")
				if err := os.WriteFile(config, []byte(block+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				s := newSession(t)
				code := s.run(t.Context(), "check", config)
				said := s.out.String() + s.err.String()
				warnings := strings.Count(said, "(a warning)") - strings.Count(said, " on this host (a warning)") // the guides' files are not here
				if code != 0 || warnings > 0 {
					t.Errorf("vipctl check exits with %d:\n%s%s", code, s.out, s.err)
				}
			})
		}
	}
	if checked < 9 {
		t.Errorf("found %d blocks", checked)
	}
}
