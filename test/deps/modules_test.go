package deps

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDependenciesHaveAReason compares the direct requirements in go.mod with docs/contributing.md.
// docs/contributing.md must give a reason for each.
func TestDependenciesHaveAReason(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/contributing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## Dependencies\n")
	section, _, _ = strings.Cut(section, "\n## ")
	required := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) { // the lines of indirect requirements end in "// indirect"
		required[m[1]] = true
		if !strings.Contains(section, "`"+m[1]+"`") {
			t.Errorf("docs/contributing.md lacks a reason for %s", m[1])
		}
	}
	if len(required) < 10 {
		t.Fatalf("direct requirements in go.mod = %d, want more: the pattern may no longer match", len(required))
	}
	for _, m := range regexp.MustCompile("`([a-z.]+\\.[a-z]+/[^`]+)`").FindAllStringSubmatch(section, -1) {
		if !required[m[1]] {
			t.Errorf("docs/contributing.md lists %s, want only direct requirements in go.mod", m[1])
		}
	}
}
