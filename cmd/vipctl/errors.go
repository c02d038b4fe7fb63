package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errDifferences ends a diff that found some; they are printed already.
var errDifferences = errors.New("there are differences")

// errReported ends a verb that failed and has said so on its output already.
var errReported = errors.New("reported")

// exitError ends a verb with the exit code of another program.
type exitError struct{ code int }

// Error names the code.
func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// usageError is wrong use: the command line, not the world, is at fault.
type usageError struct{ text string }

// Error returns the sentence.
func (e *usageError) Error() string { return oneLine(e.text) }

func wrongUse(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// oneLine puts the lines of an error behind one another: errors are one line each, for scripts and logs.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// choices writes a list as "a, b or c".
func choices(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	last := len(list) - 1
	return strings.Join(slices.Clone(list[:last]), ", ") + " or " + list[last]
}
