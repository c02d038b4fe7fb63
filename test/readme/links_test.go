package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLinks follows every relative link in the documents, including its heading, and every folder
// in README.md's tables. All targets must exist.
func TestLinks(t *testing.T) {
	top := filepath.Join("..", "..")
	files, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]+))?\)`)
	place := regexp.MustCompile("^\\| `([^`]+)`(?:, `([^`]+)`)?")
	for _, file := range append(files, filepath.Join(top, "README.md")) {
		for number, line := range strings.Split(read(t, file), "\n") {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				to := file
				if m[1] != "" {
					to = filepath.Join(filepath.Dir(file), m[1])
				}
				if _, err := os.Stat(to); err != nil || m[2] != "" && !slices.Contains(anchors(t, to), m[2]) {
					t.Errorf("%s:%d: the target of the link %s is missing", file, number+1, m[0])
				}
			}
			if m := place.FindStringSubmatch(line); m != nil && filepath.Base(file) == "README.md" {
				for _, folder := range m[1:] {
					if _, err := os.Stat(filepath.Join(top, folder)); err != nil {
						t.Errorf("%s:%d: %s does not exist", file, number+1, folder)
					}
				}
			}
		}
	}
}

// anchors returns the link targets that GitHub derives from a document's headings.
func anchors(t *testing.T, file string) (all []string) {
	t.Helper()
	dropped := regexp.MustCompile(`[^a-z0-9 _-]`)
	for line := range strings.Lines(read(t, file)) {
		if marks, title, ok := strings.Cut(line, " "); ok && marks != "" && strings.Trim(marks, "#") == "" {
			title = dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			all = append(all, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
