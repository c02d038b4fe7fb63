package main

import (
	"bytes"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// queuedLines is the maximum number of lines, about 300 KB, that wait for a blocked log.
	// Additional lines are dropped.
	queuedLines = 1000
	// stalledAfter limits how long a writer waits for the log if the queue is full, for example in
	// a burst. If the log accepts no line in that time, it has stalled.
	stalledAfter = time.Second
	// lastLines limits how long writing the last lines may take when vipd exits.
	lastLines = 2 * time.Second
)

// logQueue accepts each line immediately, and writes it to a log that may block for a long time,
// for example a hung journald or a pipe without a reader. No part of vipd waits for such a log.
type logQueue struct {
	to       io.Writer
	own      atomic.Pointer[slog.Logger] // for the queue's own lines; nil before log is called
	patience time.Duration
	lines    chan []byte
	// stalled reports whether the log did not accept a line in time, and has not accepted any line
	// since.
	stalled atomic.Bool
	lost    atomic.Uint64
	over    chan struct{} // closed by end
	done    chan struct{} // closed when all lines are written
}

// startLogQueue starts a queue that writes until the method end is called.
func startLogQueue(to io.Writer, patience time.Duration) *logQueue {
	q := &logQueue{to: to, patience: patience, lines: make(chan []byte, queuedLines), over: make(chan struct{}), done: make(chan struct{})}
	go q.run()
	return q
}

// log is like newLog, but the returned logger writes through the queue. The queue's own lines have
// the same format.
func (q *logQueue) log(journal bool, level, format string) (*slog.Logger, error) {
	own, err := newHandler(q.to, journal, level, format)
	if err != nil {
		return nil, err
	}
	q.own.Store(slog.New(own))
	return newLog(q, journal, level, format)
}

// Write implements io.Writer for single lines. It waits if the log is slow, and drops the line if
// the log has stalled.
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

// write writes a line to the log, which may block. After that, the log no longer counts as stalled.
func (q *logQueue) write(line []byte) {
	_, _ = q.to.Write(line) // there is nowhere to report an error
	q.stalled.Store(false)
}

func (q *logQueue) run() {
	defer close(q.done)
	for {
		select {
		case line := <-q.lines:
			q.write(line)
			continue
		default: // all earlier lines are written, so the number of dropped lines follows
		}
		if log := q.own.Load(); log != nil {
			if lost := q.lost.Swap(0); lost > 0 {
				log.Error("the log accepted no lines for some time, so lines are missing here", "lines", lost)
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

// end waits until all lines are written or the log stalls. It may be called only once.
func (q *logQueue) end() {
	close(q.over)
	select {
	case <-q.done:
	case <-time.After(lastLines): // the writer goroutine remains blocked in its last line
	}
}
