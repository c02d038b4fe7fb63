package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
)

func watchFlag() cli.Flag {
	return &cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show the output again after each change, until Ctrl-C"}
}

// reconnectInterval is the pause between attempts to reach a daemon that has stopped.
const reconnectInterval = time.Second

// showError is an error from printing an answer. Unlike a failed connection to the daemon, it makes
// the verb fail.
type showError struct{ error }

// Unwrap returns the original error.
func (e *showError) Unwrap() error { return e.error }

// follow calls stream, a function that reads the daemon's answers and must call received for each
// answer. If the stream ends, follow calls stream again. Before the first answer,
// follow returns the error from stream instead; answered reports whether there was an earlier
// answer. It returns nil when ctx is done.
func follow(c *cli.Call, answered bool, stream func(received func()) error) error {
	away := false
	received := func() {
		if answered = true; away {
			away = false
			c.Note("vipd answers again")
		}
	}
	for {
		err := stream(received)
		broken, isBroken := errors.AsType[*showError](err)
		switch {
		case c.Err() != nil:
			return nil
		case isBroken:
			return broken.error
		case !answered:
			return err
		case !away:
			away = true
			c.Note("%v; waiting for vipd", err)
		}
		select {
		case <-c.Done():
			return nil
		case <-time.After(reconnectInterval):
		}
	}
}

// showDaemon shows the daemon's answer to a question. With -w, it shows each new answer. what is
// the name of the question in the API path.
func showDaemon[T any](c *cli.Call, what string, question func(*api.Client, context.Context) (T, error), show func(T) error) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	if !c.Flags.Bool("watch") {
		answer, err := question(client, c)
		if err != nil {
			return err
		}
		return show(answer)
	}
	last := frame{}
	return follow(c, false, func(received func()) error {
		return client.Watch(c, what, func(text json.RawMessage) error {
			var answer T
			err := json.Unmarshal(text, &answer)
			if err != nil {
				err = fmt.Errorf("reading the daemon's answer: %w", err)
			} else {
				received()
				err = showFrame(c.Printer, &last, func() error { return show(answer) })
			}
			if err != nil {
				return &showError{err}
			}
			return nil
		})
	})
}

// pace holds the interval between requests, and the maximum time without an answer after the first
// answer.
type pace struct{ interval, patience time.Duration }

// firstPatience is the maximum wait for the first answer. It is short because the command line may
// name the wrong daemon or etcd.
const firstPatience = 15 * time.Second

// poll calls ask at intervals until ask reports that it is done, ctx is done, or ask has failed for
// too long.
func poll(c *cli.Call, p pace, ask func() (done bool, err error)) error {
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	answered, patience := c.Now(), firstPatience
	reported := ""
	for {
		started := c.Now()
		done, err := ask()
		switch {
		case done:
			return err
		case c.Err() != nil:
		case err == nil:
			answered, patience = started, p.patience
			reported = ""
		case c.Now().Sub(answered) > patience:
			return err
		case reported != err.Error():
			reported = err.Error()
			c.Note("%v; trying again", err)
		}
		select {
		case <-c.Done():
			return c.Err()
		case <-tick.C:
		}
	}
}

// showPolled shows the answer to a question. With -w, it asks again once a second until ctx is
// done, and shows the answer again if the data that changing returns for it have changed.
func showPolled[T any](c *cli.Call, ask func() (T, error), changing func(T) any, show func(T) error) error {
	if !c.Flags.Bool("watch") {
		answer, err := ask()
		if err != nil {
			return err
		}
		return show(answer)
	}
	last, before := frame{}, ""
	err := poll(c, pace{fleetInterval, fleetPatience}, func() (bool, error) {
		answer, err := ask()
		if err != nil {
			return false, err
		}
		text, _ := json.Marshal(changing(answer)) // -o json prints the same types
		if last.shown && string(text) == before {
			return false, nil
		}
		before = string(text)
		err = showFrame(c.Printer, &last, func() error { return show(answer) })
		return err != nil, err
	})
	if c.Err() != nil {
		return nil
	}
	return err
}

// frame holds the output that was shown last. The zero value means that nothing has been shown yet.
type frame struct {
	shown    bool
	out, err string
}

// showFrame calls show for the next state, and prints its output unless it equals the previous
// output. On a terminal, it overwrites the previous table. Otherwise an empty line separates the
// tables.
func showFrame(p *cli.Printer, last *frame, show func() error) error {
	var out, notes bytes.Buffer
	stdout, stderr := p.Stdout, p.Stderr
	p.Stdout, p.Stderr = &out, &notes
	err := show()
	p.Stdout, p.Stderr = stdout, stderr
	next := frame{true, out.String(), notes.String()}
	if err != nil || next == *last {
		return err
	}
	before := ""
	if tables := p.Format == cli.FormTable || p.Format == cli.FormWide; tables && p.OutTerminal {
		before = "\x1b[H\x1b[2J"
	} else if tables && last.shown {
		before = "\n"
	}
	*last = next
	if err := p.Print(before); err != nil {
		return err
	}
	if _, err := io.WriteString(p.Stderr, next.err); err != nil {
		return fmt.Errorf("writing to stderr: %w", err)
	}
	return p.Print(next.out)
}
