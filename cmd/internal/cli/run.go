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

// usualColumns is how many columns a terminal has that does not tell.
const usualColumns = 80

// ThisProcess is the world that this process was given.
func ThisProcess() World {
	outTerminal, errTerminal := Terminal(os.Stdout), Terminal(os.Stderr)
	color := outTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if runtime.GOOS == "windows" && os.Getenv("TERM") == "" {
		color = false // its old consoles print the codes as they are
	}
	width := 0
	if outTerminal {
		columns, _, _ := term.GetSize(os.Stdout.Fd()) // 0 where it does not tell
		width = cmp.Or(columns, usualColumns)
	}
	return World{
		Width: width, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now,
		Root:        runtime.GOOS != "linux" || os.Geteuid() == 0,
		OutTerminal: outTerminal, ErrTerminal: errTerminal, Color: color,
	}
}

func Terminal(f *os.File) bool { return term.IsTerminal(f.Fd()) }

// The exit codes.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitWrongUse    = 2
	ExitDifferences = 3
)

// Run executes one command line of these verbs, prints what went wrong in one line, and returns the exit code.
func Run(ctx context.Context, w World, verbs []*Verb, args []string) int {
	return Report(ctx, w, execute(ctx, w, verbs, args))
}

func Report(ctx context.Context, w World, err error) int {
	var usage *UsageError
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

// ExitError ends a verb that has said all that there is to say.
type ExitError struct{ Code int }

// ErrDifferences ends a diff that found some, and errReported a verb that failed.
var ErrDifferences, ErrReported error = &ExitError{ExitDifferences}, &ExitError{ExitFailed}

// Error names the code.
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// UsageError is wrong use: the command line, not the world, is at fault.
type UsageError struct{ text string }

// Error returns the sentence.
func (e *UsageError) Error() string { return OneLine(e.text) }

func WrongUse(format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...)}
}

// OneLine puts the lines of an error behind one another, each once: errors are one line each, for scripts and logs.
func OneLine(text string) string {
	return strings.Join(slices.Compact(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })), "; ")
}
