package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// comeback is the pause between two attempts to reach a daemon that has gone.
const comeback = time.Second

// showError is that what came can't be shown, whereas another daemon may answer.
type showError struct{ err error }

// Error is the reason.
func (e *showError) Error() string { return e.err.Error() }

// follow shows one state after the other, also after restarts of the daemon, once it has answered. On a terminal, tables are
// drawn over the one before; elsewhere they follow one another with an empty line between. The end of ctx is the normal end.
func (c *call) follow(what string, show func(json.RawMessage) error) error {
	client, err := c.daemon()
	if err != nil {
		return err
	}
	last, away := frame{}, false
	for {
		err := client.Watch(c, what, func(answer json.RawMessage) error {
			if away {
				away = false
				c.note("vipd is there again")
			}
			if err := c.showFrame(&last, func() error { return show(answer) }); err != nil {
				return &showError{err}
			}
			return nil
		})
		var broken *showError
		switch {
		case c.Err() != nil:
			return nil
		case errors.As(err, &broken):
			return broken.err
		case !last.shown:
			return err
		case !away:
			away = true
			c.note("%v; waiting for vipd", err)
		}
		select {
		case <-c.Done():
			return nil
		case <-time.After(comeback):
		}
	}
}

// frame is one state as it was shown; the zero value: none was.
type frame struct {
	shown    bool
	out, err string
}

// showFrame shows the next state, unless it looks like the last.
func (c *call) showFrame(last *frame, show func() error) error {
	var out, told bytes.Buffer
	stdout, stderr := c.stdout, c.stderr
	c.stdout, c.stderr = &out, &told
	err := show()
	c.stdout, c.stderr = stdout, stderr
	next := frame{true, out.String(), told.String()}
	if err != nil || next == *last {
		return err
	}
	if err := c.newFrame(!last.shown); err != nil {
		return err
	}
	*last = next
	if _, err := io.WriteString(c.stderr, next.err); err != nil {
		return fmt.Errorf("writing to stderr: %w", err)
	}
	return c.print(next.out)
}

// newFrame makes room for the next state: over the one before, or below it.
func (c *call) newFrame(first bool) error {
	tables := c.format == formTable || c.format == formWide
	switch {
	case tables && c.outTerminal:
		return c.print("\x1b[H\x1b[2J")
	case tables && !first:
		return c.print("\n")
	}
	return nil
}
