package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/cli"
)

// TestDocs runs vipctl check on each TOML block in the guides. Each block must pass, and may have
// only warnings about this host.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range files {
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
				output := s.out.String() + s.err.String()
				warnings := strings.Count(output, "(a warning)") - strings.Count(output, " on this host (a warning)") // files that the guides name are missing here
				if code != 0 || warnings > 0 {
					t.Errorf("vipctl check: exit code = %d, want 0 and no warnings:\n%s%s", code, s.out, s.err)
				}
			})
		}
	}
	if checked < 9 {
		t.Errorf("checked blocks = %d, want at least 9", checked)
	}
}

// TestDocsCommands runs the guides' command lines, except those that test/readme and test/examples
// run. None may fail with a usage error.
func TestDocsCommands(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a valid command ends before it has an effect
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		block := false
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "```") {
				block = !block && line == "```"
				continue
			}
			command, isOurs := strings.CutPrefix(strings.TrimPrefix(line, "sudo "), "vipctl ")
			command, _, _ = strings.Cut(command, "#")
			command, _, _ = strings.Cut(command, ">")
			args := strings.Fields(strings.ReplaceAll(command, `"`, ""))
			if !block || !isOurs || args[0] == "cleanup" || args[0] == "doctor" { // cleanup and doctor examine the host first
				continue
			}
			for n, arg := range args { // drop the remaining words of a quoted reason
				if arg == "--reason" {
					args = args[:n+2]
					break
				}
			}
			checked++
			var errs bytes.Buffer
			w := cli.World{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &errs, Getenv: func(string) string { return "" }, Now: time.Now}
			if code := run(ctx, w, args); code == cli.ExitWrongUse {
				t.Errorf("%s:%d: vipctl %s: stderr = %s, want no usage error", file, i+1, strings.Join(args, " "), &errs)
			}
		}
	}
	if checked < 15 {
		t.Errorf("checked command lines = %d, want at least 15", checked)
	}
}

// TestFlagsAgreeAmongVerbs compares the flags of all verbs. Except for -f, a flag must take a value
// in all verbs or in none.
func TestFlagsAgreeAmongVerbs(t *testing.T) {
	hasValue := map[string]bool{}
	differ := []string{"f"} // -f names a file, as in kubectl apply, or follows, as in tail
	for _, v := range allVerbs() {
		for _, f := range v.Flags {
			_, isBool := f.(*cli.BoolFlag)
			for _, name := range f.Names() {
				if before, known := hasValue[name]; known && before == isBool && !slices.Contains(differ, name) {
					t.Errorf("flag %s of %s takes a value only in some verbs, want all or none", name, v.Name)
				}
				hasValue[name] = !isBool
			}
		}
	}
}
