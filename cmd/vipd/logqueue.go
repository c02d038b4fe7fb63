package main

import (
	"bytes"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// queuedLines is how many lines wait for a log that takes none, some 300 KB, before the next ones are dropped.
	queuedLines = 1000
	// stalledAfter is how long vipd waits for the log where the queue is full, as in a burst; one that takes no line for as long has stalled.
	stalledAfter = time.Second
	// lastLines is how long the log may take for the last lines when vipd ends.
	lastLines = 2 * time.Second
)

// logQueue is a log that takes each line at once, and writes it to one that may take none for long: a journald that hangs, or a pipe
// that nobody reads. No part of vipd stands still with it.
type logQueue struct {
	to       io.Writer
	own      atomic.Pointer[slog.Logger] // for its own lines; nil before log was called
	patience time.Duration
	lines    chan []byte
	// stalled: the log took no line in time, and has taken none since.
	stalled atomic.Bool
	lost    atomic.Uint64
	over    chan struct{} // closed by end
	done    chan struct{} // closed when all is written
}

// startLogQueue returns a queue that writes until its end is called.
func startLogQueue(to io.Writer, patience time.Duration) *logQueue {
	q := &logQueue{to: to, patience: patience, lines: make(chan []byte, queuedLines), over: make(chan struct{}), done: make(chan struct{})}
	go q.run()
	return q
}

// log is newLog for what goes through the queue. The queue's own lines have the same form.
func (q *logQueue) log(journal bool, level, format string) (*slog.Logger, error) {
	own, err := newHandler(q.to, journal, level, format)
	if err != nil {
		return nil, err
	}
	q.own.Store(slog.New(own))
	return newLog(q, journal, level, format)
}

// Write implements io.Writer, for one line at a time. It waits for a log that is slow, and drops the line where the log has stalled.
func (q *logQueue) Write(line []byte) (int, error) {
	own, patience := bytes.Clone(line), q.patience
	if q.stalled.Load() {
		patience = 0
	}
	select {
	case q.lines <- own:
		return len(line), nil
	default:
	}
	select {
	case q.lines <- own:
	case <-time.After(patience):
		q.stalled.Store(true)
		q.lost.Add(1)
	}
	return len(line), nil
}

// write writes a line.
func (q *logQueue) write(line []byte) {
	_, _ = q.to.Write(line) // there is nowhere to say so
	q.stalled.Store(false)
}

func (q *logQueue) run() {
	defer close(q.done)
	for {
		select {
		case line := <-q.lines:
			q.write(line)
			continue
		default: // what was dropped came after all that waited
		}
		if log := q.own.Load(); log != nil {
			if lost := q.lost.Swap(0); lost > 0 {
				log.Error("the log took no lines for some time, so that some are missing here", "lines", lost)
			}
		}
		select {
		case line := <-q.lines:
			q.write(line)
		case <-q.over:
			if len(q.lines) == 0 {
				return
			}
		}
	}
}

// end returns when all lines are written, or the log takes none. It is called once.
func (q *logQueue) end() {
	close(q.over)
	select {
	case <-q.done:
	case <-time.After(lastLines): // the writer is left behind in its last line
	}
}
