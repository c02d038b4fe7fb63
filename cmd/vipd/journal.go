package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
)

// These are syslog priorities at the start of a line, which journald reads and removes
// (sd-daemon(3)). They let journalctl -p err find errors.
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

// forJournal is a handler that adds a priority to the start of each line.
type forJournal struct {
	slog.Handler // writes to line
	line         *line
}

// line writes the lines of forJournal with the priority of the current record.
type line struct {
	mu       sync.Mutex // held while a record is handled
	to       io.Writer
	priority string
}

// Write writes the priority and the text in one write, so other processes can't write in between.
func (l *line) Write(text []byte) (int, error) {
	if _, err := l.to.Write(append([]byte(l.priority), text...)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Handle implements slog.Handler.
func (j forJournal) Handle(ctx context.Context, r slog.Record) error {
	j.line.mu.Lock()
	defer j.line.mu.Unlock()
	j.line.priority = priority(r.Level)
	return j.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (j forJournal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return forJournal{j.Handler.WithAttrs(attrs), j.line}
}

// WithGroup implements slog.Handler.
func (j forJournal) WithGroup(name string) slog.Handler {
	return forJournal{j.Handler.WithGroup(name), j.line}
}
