package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
)

// The priorities of syslog, as journald reads them at the beginning of a line, and removes them (sd-daemon(3)): journalctl
// -p err finds errors by them.
const (
	priorityError   = "<3>"
	priorityWarning = "<4>"
	priorityInfo    = "<6>"
	priorityDebug   = "<7>"
)

func priority(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return priorityError
	case l >= slog.LevelWarn:
		return priorityWarning
	case l >= slog.LevelInfo:
		return priorityInfo
	}
	return priorityDebug
}

// forJournal is a handler that writes each line with its priority.
type forJournal struct {
	slog.Handler // writes to line
	line         *line
}

// line is where the next line goes, and what it begins with.
type line struct {
	mu       sync.Mutex // held while a record is handled
	to       io.Writer
	priority string
}

// Write writes a line in one write: lines that others write to the same file do not get between.
func (l *line) Write(text []byte) (int, error) {
	if _, err := l.to.Write(append([]byte(l.priority), text...)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Handle is slog.Handler's.
func (j forJournal) Handle(ctx context.Context, r slog.Record) error {
	j.line.mu.Lock()
	defer j.line.mu.Unlock()
	j.line.priority = priority(r.Level)
	return j.Handler.Handle(ctx, r)
}

// WithAttrs is slog.Handler's.
func (j forJournal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return forJournal{j.Handler.WithAttrs(attrs), j.line}
}

// WithGroup is slog.Handler's.
func (j forJournal) WithGroup(name string) slog.Handler {
	return forJournal{j.Handler.WithGroup(name), j.line}
}
