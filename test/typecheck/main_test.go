package main

import (
	"os"
	"strings"
	"testing"
)

// TestFindsWhatOneSystemLacks checks a file that compiles on every system except one, which lacks a
// function. Only the check for that system must report an error.
func TestFindsWhatOneSystemLacks(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod":      "module x\n\ngo 1.26\n",
		"main.go":     "package main\n\nimport \"net\"\n\nfunc main() { _ = net.Dial; there() }\n",
		"a_linux.go":  "package main\n\nfunc there() {}\n",
		"a_darwin.go": "package main\n\nimport \"syscall\"\n\nfunc there() { _ = syscall.Kqueue }\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, system := range []string{"linux", "darwin"} {
		if err := check(system, []string{"."}); err != nil {
			t.Errorf("check for %s: error = %v, want none", system, err)
		}
	}
	if err := check("windows", []string{"."}); err == nil || !strings.Contains(err.Error(), "main.go:5:29: undefined: there") {
		t.Errorf("check for windows: error = %v, want an error about an undefined name", err)
	}
}
