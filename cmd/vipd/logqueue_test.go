package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// stalledLog blocks until answers is closed.
type stalledLog struct {
	strings.Builder
	answers chan struct{}
}

func (s *stalledLog) Write(line []byte) (int, error) {
	<-s.answers
	return s.Builder.Write(line)
}

// TestLogTakesNoLines writes to a log that blocks. Writers must wait only once, for stalledAfter.
// Later, the log must contain the first lines, and the number of dropped lines in the log's own
// format. The method end must wait no longer than lastLines.
func TestLogTakesNoLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &stalledLog{answers: make(chan struct{})}
		q := startLogQueue(to, stalledAfter)
		own, err := newHandler(to, true, "info", "json") // q.log would permanently make it the log for libraries, even after this bubble
		if err != nil {
			t.Fatal(err)
		}
		q.own.Store(slog.New(own))
		var want strings.Builder
		for i := range queuedLines + 1 {
			fmt.Fprintln(&want, i)
			fmt.Fprintln(q, i)
			synctest.Wait() // the first line is being written
		}
		began := time.Now()
		fmt.Fprintln(q, "dropped")
		fmt.Fprintln(q, "dropped")
		if waited := time.Since(began); waited != stalledAfter {
			t.Errorf("writing two lines took %s, want stalledAfter", waited)
		}
		close(to.answers)
		synctest.Wait()
		for i := range 3 * queuedLines { // a burst
			fmt.Fprintln(q, "last", i)
		}
		q.end()
		want.WriteString(`<3>{"level":"ERROR","msg":"the log accepted no lines for some time, so lines are missing here","lines":2}` + "\n")
		for i := range 3 * queuedLines {
			fmt.Fprintln(&want, "last", i)
		}
		if got := regexp.MustCompile(`"time":"[^"]*",`).ReplaceAllString(to.String(), ""); got != want.String() {
			t.Errorf("log = %q, want %q", got, want.String())
		}

		to = &stalledLog{answers: make(chan struct{})}
		q = startLogQueue(to, 0)
		fmt.Fprintln(q, "never")
		began = time.Now()
		if q.end(); time.Since(began) != lastLines {
			t.Errorf("end took %s, want lastLines", time.Since(began))
		}
		close(to.answers)
	})
}
