package cli

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

// usualColumns is the width of a terminal that does not report it.
const usualColumns = 80

// ThisProcess returns the world of this process.
func ThisProcess() World {
	outTerminal, errTerminal := Terminal(os.Stdout), Terminal(os.Stderr)
	color := outTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if runtime.GOOS == "windows" && os.Getenv("TERM") == "" {
		color = false // its old consoles print the codes as they are
	}
	width := 0
	if outTerminal {
		columns, _, _ := term.GetSize(os.Stdout.Fd()) // 0 if it is unknown
		width = cmp.Or(columns, usualColumns)
	}
	return World{
		Width: width, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now,
		Root:        runtime.GOOS != "linux" || os.Geteuid() == 0,
		OutTerminal: outTerminal, ErrTerminal: errTerminal, Color: color,
	}
}

// Terminal reports whether a file is a terminal.
func Terminal(f *os.File) bool { return term.IsTerminal(f.Fd()) }

// The exit codes.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitWrongUse    = 2
	ExitDifferences = 3 // also services that need a decision
)

// Run executes a command line of these verbs, prints an error in one line, and returns the exit code.
func Run(ctx context.Context, w World, verbs []*Verb, args []string) int {
	return report(ctx, w, execute(ctx, w, verbs, args))
}

// report prints an error in one line, and returns the exit code.
func report(ctx context.Context, w World, err error) int {
	var usage *usageError
	var exit *ExitError
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &usage):
		fmt.Fprintf(w.Stderr, "vipctl: %v\n", err)
		return ExitWrongUse
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		fmt.Fprintln(w.Stderr, "vipctl: interrupted")
		return ExitFailed
	}
	fmt.Fprintf(w.Stderr, "vipctl: %s\n", OneLine(err.Error())+remedy(err))
	return ExitFailed
}

// ExitError ends a verb with an exit code. Nothing more is printed.
type ExitError struct{ Code int }

// ErrDifferences ends a diff that found differences, and ErrReported ends a verb that has printed why it failed.
var ErrDifferences, ErrReported error = &ExitError{ExitDifferences}, &ExitError{ExitFailed}

// Error names the code.
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// usageError is a mistake in the command line.
type usageError struct{ text string }

// Error returns the sentence.
func (e *usageError) Error() string { return OneLine(e.text) }

// WrongUse returns an error about a mistake in the command line.
func WrongUse(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// OneLine joins the lines of an error, for scripts and logs. Equal lines in a row are written once.
func OneLine(text string) string {
	return strings.Join(slices.Compact(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })), "; ")
}
