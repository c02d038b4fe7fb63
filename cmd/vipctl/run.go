package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
)

// usualColumns is how many columns a terminal has that does not tell.
const usualColumns = 80

// thisProcess is the world that this process was given.
func thisProcess() world {
	outTerminal, errTerminal := terminal(os.Stdout), terminal(os.Stderr)
	color := outTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if runtime.GOOS == "windows" && os.Getenv("TERM") == "" {
		color = false // its old consoles print the codes as they are
	}
	width := 0
	if outTerminal {
		columns, _, _ := term.GetSize(os.Stdout.Fd()) // 0 where it does not tell
		width = cmp.Or(columns, usualColumns)
	}
	return world{
		width: width, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, now: time.Now,
		root:        runtime.GOOS != "linux" || os.Geteuid() == 0,
		outTerminal: outTerminal, errTerminal: errTerminal, color: color,
	}
}

func terminal(f *os.File) bool { return term.IsTerminal(f.Fd()) }

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitWrongUse    = 2
	exitDifferences = 3
)

// runLine executes one command line of these verbs, prints what went wrong in one line, and returns the exit code.
func runLine(ctx context.Context, w world, verbs []*verb, args []string) int {
	return report(ctx, w, execute(ctx, w, verbs, args))
}

func report(ctx context.Context, w world, err error) int {
	var usage *usageError
	var exit *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage):
		fmt.Fprintf(w.stderr, "vipctl: %v\n", err)
		return exitWrongUse
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		fmt.Fprintln(w.stderr, "vipctl: interrupted")
		return exitFailed
	}
	fmt.Fprintf(w.stderr, "vipctl: %s\n", oneLine(err.Error())+remedy(err))
	return exitFailed
}

// exitError ends a verb that has said all that there is to say.
type exitError struct{ code int }

// errDifferences ends a diff that found some, and errReported a verb that failed.
var errDifferences, errReported error = &exitError{exitDifferences}, &exitError{exitFailed}

// Error names the code.
func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// usageError is wrong use: the command line, not the world, is at fault.
type usageError struct{ text string }

// Error returns the sentence.
func (e *usageError) Error() string { return oneLine(e.text) }

func wrongUse(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// oneLine puts the lines of an error behind one another, each once: errors are one line each, for scripts and logs.
func oneLine(text string) string {
	return strings.Join(slices.Compact(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })), "; ")
}
