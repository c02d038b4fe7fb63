package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// serviceName is the name of the service, and of the event source for its entries in the
// Application log.
const serviceName = "vipd"

// eventID is the event ID of each entry. EventCreate.exe is the source's message file, in which the
// text of events 1 to 1000 is "%1".
const eventID = 1

// stopHint is the maximum time between two progress reports while vipd stops, because it may drain
// connections for up to drain_timeout. stopSign is the interval at which it reports progress.
const (
	stopHint = 10 * time.Second
	stopSign = 2 * time.Second
)

// runService runs vipd with args under the service manager, and returns the exit code once the
// service has stopped.
func runService(args []string, stderr io.Writer) int {
	s := service{args: args, log: io.Discard}
	if l, err := eventlog.Open(serviceName); err == nil {
		defer func() { _ = l.Close() }()
		s.log = eventWriter{l}
	}
	if err := svc.Run(serviceName, s); err != nil {
		fmt.Fprintf(stderr, "vipd %s: %v: only the service manager can start this; to run vipd in a console, omit %q\n", serviceVerb, err, serviceVerb)
		return exitFailed
	}
	return exitDone // Execute has passed vipd's exit code to the service manager
}

// service implements svc.Handler.
type service struct {
	args []string
	log  io.Writer
}

// Execute runs vipd until it exits or the service manager stops it.
func (s service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, s.args, io.Discard, s.log) }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	stopping := svc.Status{State: svc.StopPending, WaitHint: uint32(stopHint.Milliseconds())}
	var signs <-chan time.Time
	for {
		select {
		case code := <-ended:
			return code != exitDone, uint32(code)
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				stop()
				signs = time.Tick(stopSign)
				status <- stopping
			}
		case <-signs:
			stopping.CheckPoint++
			status <- stopping
		}
	}
}

// eventWriter writes lines, which start with a priority, to the Application log.
type eventWriter struct{ log *eventlog.Log }

// Write writes a line as one entry.
func (w eventWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	report := w.log.Info
	switch {
	case strings.HasPrefix(text, priorityError):
		report = w.log.Error
	case strings.HasPrefix(text, priorityWarning):
		report = w.log.Warning
	}
	if len(text) > len(priorityError) && text[0] == '<' {
		text = text[len(priorityError):]
	}
	return len(line), report(eventID, text)
}
