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

// TestDocs has every TOML block of the guides pass vipctl check.
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

// TestDocsCommands: no command line of the guides is wrong use. Those that test/readme and test/examples run are blocks of sh.
func TestDocsCommands(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // what is right ends before it has done anything
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
			if !block || !isOurs || args[0] == "cleanup" || args[0] == "doctor" { // these two look at the host first
				continue
			}
			for n, arg := range args { // what was quoted is one word
				if arg == "--reason" {
					args = args[:n+2]
					break
				}
			}
			checked++
			var errs bytes.Buffer
			w := cli.World{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &errs, Getenv: func(string) string { return "" }, Now: time.Now}
			if code := run(ctx, w, args); code == cli.ExitWrongUse {
				t.Errorf("%s:%d: vipctl %s: %s", file, i+1, strings.Join(args, " "), &errs)
			}
		}
	}
	if checked < 15 {
		t.Errorf("found %d command lines", checked)
	}
}

// TestFlagsAgreeAmongVerbs compares the flags of all verbs. A name takes a value for each of them or for none; where it has two
// meanings that everybody knows, the verb is found first.
func TestFlagsAgreeAmongVerbs(t *testing.T) {
	takes := map[string]bool{}
	differ := []string{"f"} // a file, as for kubectl apply, and to follow, as for tail
	for _, v := range allVerbs() {
		for _, f := range v.Flags {
			_, isBool := f.(*cli.BoolFlag)
			for _, name := range f.Names() {
				if before, known := takes[name]; known && before == isBool && !slices.Contains(differ, name) {
					t.Errorf("flag %s takes a value with %s only", name, v.Name)
				}
				takes[name] = !isBool
			}
		}
	}
}
