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
	return &cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show it again with each change, until Ctrl-C"}
}

// comeback is the pause between two attempts to reach a daemon that has gone.
const comeback = time.Second

// showError is that what came can't be shown, whereas another daemon may answer.
type showError struct{ error }

// Unwrap returns what the output said.
func (e *showError) Unwrap() error { return e.error }

// follow keeps a stream of a daemon's answers going over restarts of the daemon, once it has answered. The stream calls
// heard with each answer. The end of ctx is the normal end.
func follow(c *cli.Call, answered bool, stream func(heard func()) error) error {
	away := false
	heard := func() {
		if answered = true; away {
			away = false
			c.Note("vipd is back")
		}
	}
	for {
		err := stream(heard)
		var broken *showError
		switch {
		case c.Err() != nil:
			return nil
		case errors.As(err, &broken):
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
		case <-time.After(comeback):
		}
	}
}

// showDaemon shows what the daemon answers to a question: once, or with -w again with each change of it. What is its name
// in the API's path.
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
	return follow(c, false, func(heard func()) error {
		return client.Watch(c, what, func(text json.RawMessage) error {
			var answer T
			err := json.Unmarshal(text, &answer)
			if err != nil {
				err = fmt.Errorf("reading the daemon's answer: %w", err)
			} else {
				heard()
				err = showFrame(c.Printer, &last, func() error { return show(answer) })
			}
			if err != nil {
				return &showError{err}
			}
			return nil
		})
	})
}

// pace is how often something is asked, and how long it may be away once it has answered.
type pace struct{ interval, patience time.Duration }

// firstPatience is how long something may be away that has not answered yet: the command line may be wrong.
const firstPatience = 15 * time.Second

// poll asks again and again until ask is done, ctx ends, or what is asked has been away for too long.
func poll(c *cli.Call, p pace, ask func() (done bool, err error)) error {
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	answered, patience, told := c.Now(), firstPatience, ""
	for {
		asked := c.Now()
		done, err := ask()
		switch {
		case done:
			return err
		case c.Err() != nil:
		case err == nil:
			answered, patience, told = asked, p.patience, ""
		case c.Now().Sub(answered) > patience:
			return err
		case told != err.Error():
			told = err.Error()
			c.Note("%v; trying again", err)
		}
		select {
		case <-c.Done():
			return c.Err()
		case <-tick.C:
		}
	}
}

// frame is one state as it was shown; the zero value: none was.
type frame struct {
	shown    bool
	out, err string
}

// showFrame shows the next state, unless it looks like the last. On a terminal, tables are drawn over the one before;
// elsewhere they follow one another with an empty line between.
func showFrame(p *cli.Printer, last *frame, show func() error) error {
	var out, told bytes.Buffer
	stdout, stderr := p.Stdout, p.Stderr
	p.Stdout, p.Stderr = &out, &told
	err := show()
	p.Stdout, p.Stderr = stdout, stderr
	next := frame{true, out.String(), told.String()}
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
