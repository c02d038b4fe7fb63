package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestJournalLines logs to the journal. Each line must start with its priority, regardless of which
// logger wrote it. Text lines must have neither time nor level, and JSON lines must keep both.
func TestJournalLines(t *testing.T) {
	write := func(format string, journal bool) []string {
		var out strings.Builder
		log, err := newLog(&out, journal, "debug", format)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("one")
		log.With("component", "x").Info("two\nlines")
		log.WithGroup("g").Warn("three", "level", "mine")
		log.Error("four")
		slog.Info("five") // libraries log like this
		return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	}
	want := []string{
		`<7>msg=one`, `<6>msg="two\nlines" component=x`, `<4>msg=three g.level=mine`, `<3>msg=four`, `<6>msg=five`,
	}
	if got := write("text", true); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("text in the journal =\n%q, want\n%q", got, want)
	}
	for i, line := range write("json", true) {
		rest, ok := strings.CutPrefix(line, want[i][:3])
		var fields map[string]any
		if err := json.Unmarshal([]byte(rest), &fields); !ok || err != nil || fields[slog.TimeKey] == nil || fields[slog.LevelKey] == nil {
			t.Errorf("JSON in the journal = %q (%v), want %s, time and level", line, err, want[i][:3])
		}
	}
	for _, line := range write("text", false) {
		if !strings.HasPrefix(line, "time=") || !strings.Contains(line, " level=") {
			t.Errorf("text elsewhere = %q, want time and level", line)
		}
	}
}

// TestLibrariesAreHeard makes an HTTP handler panic. The panic must be in the log as a warning,
// even if the log's level is warning.
func TestLibrariesAreHeard(t *testing.T) {
	out, in := io.Pipe()
	if _, err := newLog(in, true, "warn", "text"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") }))
	go func() {
		if answer, err := http.Get(s.URL); err == nil {
			_ = answer.Body.Close()
		}
		s.Close() // returns after the handler has returned
		_ = in.Close()
	}()
	got, err := io.ReadAll(out)
	if err != nil || !strings.HasPrefix(string(got), `<4>msg="http: panic serving `) || !strings.Contains(string(got), "oops") {
		t.Errorf("log = %q, %v; want a line with level 4 and the panic", got, err)
	}
}
