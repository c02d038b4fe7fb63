package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/cmd/internal/cli"
)

// TestConvert converts the configurations in cmd/internal/convert/testdata, and compares the
// results with the files next to them. vipctl check must accept the results. The first line of a
// configuration may have flags: "# --vip 10.5.0.1".
func TestConvert(t *testing.T) {
	const folder = "../internal/convert/testdata"
	files, err := filepath.Glob(folder + "/*/*.conf")
	if err != nil || len(files) < 30 {
		t.Fatalf("found %d configurations, error %v", len(files), err)
	}
	for _, file := range files {
		format := filepath.Base(filepath.Dir(file))
		t.Run(format+"/"+filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"convert", "--from", format, "-"}
			if flags, ok := strings.CutPrefix(strings.SplitN(string(text), "\n", 2)[0], "# --"); ok {
				args = append(args, strings.Fields("--"+flags)...)
			}
			code, got, stderr := runAlone(t, string(text), args...)
			wantCode := cli.ExitDone
			if strings.Contains(got, "\n# Commented out:\n") {
				wantCode = cli.ExitDifferences
			} else if !strings.Contains(got, "[services.") && !strings.Contains(got, "[ownership.vrrp.") {
				wantCode = cli.ExitFailed
			}
			if code != wantCode {
				t.Fatalf("exit code = %d, want %d: %s", code, wantCode, stderr)
			}
			golden := strings.TrimSuffix(file, ".conf") + ".toml"
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("output (-want +got):\n%s", d)
			}
			if code == cli.ExitFailed {
				return // no service to check
			}
			if strings.Contains(got, "Lines without") != strings.Contains(stderr, "listed at the end") {
				t.Errorf("stderr = %q, want a count of the lines without an equivalent if there are any", stderr)
			}
			if (code == cli.ExitDifferences) != strings.Contains(stderr, "commented out") {
				t.Errorf("stderr = %q, want a count of the services that are commented out if there are any", stderr)
			}
			code, stderr, _ = runAlone(t, "", "check", golden)
			if code != cli.ExitDone {
				t.Errorf("exit code of vipctl check = %d:\n%s", code, stderr)
			}
		})
	}
}

// runAlone runs a command that needs no daemon.
func runAlone(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err strings.Builder
	w := cli.World{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &err, Getenv: func(string) string { return "" }}
	code = run(context.Background(), w, args)
	return code, out.String(), err.String()
}

// TestInterruptEndsReading interrupts "convert" and "check" while they read from standard input.
// Both must end.
func TestInterruptEndsReading(t *testing.T) {
	for _, args := range [][]string{{"convert", "--from", "nginx", "-"}, {"check", "-"}} {
		never, end := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		var stderr strings.Builder
		w := cli.World{Stdin: never, Stdout: io.Discard, Stderr: &stderr, Getenv: func(string) string { return "" }}
		ended := make(chan int)
		go func() { ended <- run(ctx, w, args) }()
		interrupt()
		if code := <-ended; code == cli.ExitDone || !strings.Contains(stderr.String(), "interrupted") {
			t.Errorf("%s: exit code = %d, stderr %q, want interrupted", args[0], code, stderr.String())
		}
		_ = end.Close()
	}
}
