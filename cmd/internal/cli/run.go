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

// UsualColumns is the assumed width of a terminal that does not report its width.
const UsualColumns = 80

// ThisProcess returns this process's World.
func ThisProcess() World {
	outTerminal, errTerminal := Terminal(os.Stdout), Terminal(os.Stderr)
	color := outTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if runtime.GOOS == "windows" && os.Getenv("TERM") == "" {
		color = false // old consoles print the codes unchanged
	}
	width := 0
	if outTerminal {
		columns, _, _ := term.GetSize(os.Stdout.Fd()) // 0 if it is unknown
		width = cmp.Or(columns, UsualColumns)
	}
	return World{
		Width: width, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now,
		Root:        runtime.GOOS != "linux" || os.Geteuid() == 0,
		OutTerminal: outTerminal, ErrTerminal: errTerminal, Color: color,
	}
}

// Terminal reports whether a file is a terminal.
func Terminal(f *os.File) bool { return term.IsTerminal(f.Fd()) }

// These are the exit codes.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitWrongUse    = 2
	ExitDifferences = 3 // also returned by convert if services need a decision
	// ExitDown means that a service is down.
	ExitDown = 4
	// ExitInterrupted means that Ctrl-C ended the verb. Shells use the same code for SIGINT.
	ExitInterrupted = 130
	// ExitTerminated means that SIGTERM ended the verb. Shells use the same code.
	ExitTerminated = 143
)

// Run runs a command line with one of the verbs in groups, prints any error on a single line, and
// returns the exit code.
func Run(ctx context.Context, w World, groups []Group, args []string) int {
	return report(ctx, w, execute(ctx, w, groups, args))
}

// report prints an error on a single line, and returns its exit code.
func report(ctx context.Context, w World, err error) int {
	if err == nil {
		return ExitDone
	}
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return exit.Code
	}
	_, isWrongUse := errors.AsType[*usageError](err)
	switch {
	case isWrongUse:
		fmt.Fprintf(w.Stderr, "vipctl: %v\n", err)
		return ExitWrongUse
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		text := "interrupted"
		if i, ok := errors.AsType[*interruptedError](err); ok {
			text += i.text
		}
		fmt.Fprintf(w.Stderr, "vipctl: %s\n", text)
		return ExitInterrupted
	}
	fmt.Fprintf(w.Stderr, "vipctl: %s\n", OneLine(err.Error())+remedy(err))
	return ExitFailed
}

// ExitError is an error that only sets the exit code. No message is printed for it.
type ExitError struct{ Code int }

// ErrDifferences is returned by a diff that found differences. ErrReported is returned by a verb
// that has already printed the reason for its failure.
var ErrDifferences, ErrReported error = &ExitError{ExitDifferences}, &ExitError{ExitFailed}

// Error returns a message with the exit code.
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// usageError is a mistake on the command line.
type usageError struct{ text string }

// Error returns the message on one line.
func (e *usageError) Error() string { return OneLine(e.text) }

// WrongUse returns an error about a mistake on the command line.
func WrongUse(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// interruptedError means that Ctrl-C ended a wait. Its text says what is still unfinished.
type interruptedError struct{ text string }

// Error returns the message on one line, after the word "interrupted".
func (e *interruptedError) Error() string { return "interrupted" + OneLine(e.text) }

// Unwrap returns context.Canceled, the error of an interrupted context.
func (e *interruptedError) Unwrap() error { return context.Canceled }

// Interrupted returns an error about a wait that Ctrl-C ended. Its text follows the word
// "interrupted".
func Interrupted(format string, args ...any) error {
	return &interruptedError{fmt.Sprintf(format, args...)}
}

// OneLine joins an error's lines, for scripts and logs. Consecutive equal lines are written once.
func OneLine(text string) string {
	return strings.Join(slices.Compact(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })), "; ")
}
