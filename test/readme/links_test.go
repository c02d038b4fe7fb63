package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinks: every relative link of the documents leads to something, and so does every folder that the tables of
// README.md name.
func TestLinks(t *testing.T) {
	top := filepath.Join("..", "..")
	files, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#]+)`)
	place := regexp.MustCompile("^\\| `([^`]+)`(?:, `([^`]+)`)?")
	for _, file := range append(files, filepath.Join(top, "README.md")) {
		for number, line := range strings.Split(read(t, file), "\n") {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
					t.Errorf("%s:%d: the link to %s leads nowhere", file, number+1, m[1])
				}
			}
			if m := place.FindStringSubmatch(line); m != nil && filepath.Base(file) == "README.md" {
				for _, folder := range m[1:] {
					if _, err := os.Stat(filepath.Join(top, folder)); err != nil {
						t.Errorf("%s:%d: there is no %s", file, number+1, folder)
					}
				}
			}
		}
	}
}
