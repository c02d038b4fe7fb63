package hooks

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/events"
	"vipd/test/wait"
)

// hooked runs hooks for a history until the test ends. Each command is a shell script. $OUT is a
// directory to which any user may write.
func hooked(t *testing.T, commands map[string]string) (journal *events.History, out string, logged *log) {
	t.Helper()
	out = t.TempDir()
	for dir := out; dir != filepath.Dir(os.TempDir()); dir = filepath.Dir(dir) { // the user nobody must be able to enter the directory
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil && dir == out {
			t.Fatal(err)
		}
	}
	logged = &log{lines: make(chan string, 1000)}
	o := Options{
		Commands: map[string][]string{}, Node: "n1", Events: events.New(events.Options{Log: slog.New(slog.DiscardHandler)}),
		Log: slog.New(slog.NewTextHandler(logged, nil)),
	}
	for name, script := range commands {
		o.Commands[name] = []string{"/bin/sh", "-c", script, "sh", out}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return o.Events, out, logged
}

type log struct{ lines chan string }

func (l *log) Write(b []byte) (int, error) {
	select {
	case l.lines <- string(b):
	default:
	}
	return len(b), nil
}

func reads(t *testing.T, file, want string) {
	t.Helper()
	var got string
	wait.For(t, 5*time.Minute, "the hook to write "+want, func() bool {
		b, _ := os.ReadFile(file)
		got = string(b)
		return got == want
	})
}

// TestHooks records events of several kinds. Each hook must receive the events of its kinds in
// order, on stdin and in its environment, as user nobody.
func TestHooks(t *testing.T) {
	say := `echo "$VIPD_NODE $VIPD_HOOK $VIPD_KIND $VIPD_SERVICE $VIPD_ENDPOINT $VIPD_TEXT ($VIPD_CAUSE)" >>$1/said; cat >>$1/json; id -un >$1/who`
	journal, out, _ := hooked(t, map[string]string{"on_health": say})
	journal.Record(events.Event{Kind: events.Health, Service: "web", Endpoint: "10.0.0.1:80", Text: "is down", Cause: "connection\nrefused\x00"})
	journal.Record(events.Event{Kind: events.Mode, Text: "ipvs mode serves"})
	journal.Record(events.Event{Kind: events.Health, Service: "web", Endpoint: "10.0.0.1:80", Text: "is up"})
	reads(t, filepath.Join(out, "said"), "n1 on_health health web 10.0.0.1:80 is down (connection\nrefused)\nn1 on_health health web 10.0.0.1:80 is up ()\n")
	text, err := os.ReadFile(filepath.Join(out, "json"))
	if err != nil {
		t.Fatal(err)
	}
	var first input
	if err := json.NewDecoder(strings.NewReader(string(text))).Decode(&first); err != nil || first.Node != "n1" || first.Text != "is down" || first.Seq == 0 {
		t.Errorf("input of the hook = %+v, error = %v, want the first event of n1 from\n%s", first, err, text)
	}
	if os.Geteuid() == 0 {
		reads(t, filepath.Join(out, "who"), "nobody\n")
	}
}

// TestHooksThatFail runs hooks that hang or fail. A hanging hook must not delay other hooks, and
// its oldest waiting events must be dropped. A failure must be logged with the program's output.
func TestHooksThatFail(t *testing.T) {
	journal, out, logged := hooked(t, map[string]string{
		"on_mode":    `touch $1/began; until [ -e $1/go ]; do sleep 0.01; done; sed 's/.*"missed":\([0-9]*\).*"text":"\([^"]*\)".*/\1 \2/; t; s/.*"text":"\([^"]*\)".*/\1/' >>$1/modes`,
		"on_problem": `echo no mail today >&2; exit 3`,
	})
	journal.Record(events.Event{Kind: events.Mode, Text: "first"})
	wait.For(t, wait.Patience, "the hook to run", func() bool { _, err := os.Stat(filepath.Join(out, "began")); return err == nil })
	journal.Record(events.Event{Kind: events.Problem, Text: "bad"})
	if line := <-logged.lines; !strings.Contains(line, "exited with 3: no mail today") {
		t.Errorf("log = %q, want the exit code and the output of the hook", line)
	}
	const more = 10_200 // the history has lost the first events
	var want strings.Builder
	for i := range maxWaiting + more {
		journal.Record(events.Event{Kind: events.Mode, Text: fmt.Sprintf("m%d", i)})
		switch {
		case i == more:
			fmt.Fprintf(&want, "%d m%d\n", more, i)
		case i > more:
			fmt.Fprintf(&want, "m%d\n", i)
		}
	}
	if err := os.WriteFile(filepath.Join(out, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	reads(t, filepath.Join(out, "modes"), "first\n"+want.String())
}
