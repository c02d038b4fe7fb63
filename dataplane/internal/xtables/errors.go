package xtables

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// UnsupportedError means that this host does not support a feature. It includes advice about how to
// enable the feature.
type UnsupportedError struct {
	// Feature is the missing feature, such as "ip6tables".
	Feature string
	// Need is the advice, such as "install iptables: apt-get install iptables".
	Need string
	Err  error
}

// Error returns the feature, the cause and the advice.
func (e *UnsupportedError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s does not work here: %s", e.Feature, e.Need)
	}
	return fmt.Sprintf("%s does not work here: %v: %s", e.Feature, e.Err, e.Need)
}

// Unwrap returns the cause.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// ErrIncompatible means that iptables can't read a table, because the table contains rules that
// iptables can't print.
var ErrIncompatible = errors.New("it contains rules that iptables can't read: move them to a separate nftables table (nft list ruleset shows them)")

// OpError is the error of an iptables program that failed.
type OpError struct {
	// Op is the operation, such as "iptables-nft-restore".
	Op string
	// Line is the number of the refused line, starting at 1. Zero means that the program did not
	// name a line.
	Line int
	// Input is the text of that line.
	Input string
	// Text is the program's message as a single line.
	Text string
	// Err is the program's exit status.
	Err error
}

// Error returns the program, the refused line, and the reason.
func (e *OpError) Error() string {
	text := e.Text
	if text == "" {
		text = e.Err.Error()
	}
	if e.Line == 0 {
		return fmt.Sprintf("running %s: %s", e.Op, text)
	}
	return fmt.Sprintf("running %s: line %d, %q: %s", e.Op, e.Line, e.Input, text)
}

// Unwrap returns the program's exit status.
func (e *OpError) Unwrap() error { return e.Err }

// IsBusy reports whether a retry may help, because another program held the tables for too long, or
// the system lacked the resources to start the program.
func IsBusy(err error) bool {
	if err == nil {
		return false
	}
	reasons := []string{"holding the xtables lock", "Resource temporarily unavailable", "Device or resource busy"}
	return slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(err.Error(), reason) }) ||
		errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) // the program could not be started
}

// IsIncompatible reports whether err means that a table contains nft rules that iptables can
// neither read nor change.
func IsIncompatible(err error) bool {
	return err != nil && strings.Contains(err.Error(), "is incompatible, use 'nft' tool")
}

// failure returns the error for a program that failed. stderr is its error output, and input is its
// input, or "".
func failure(op, input, stderr string, err error) *OpError {
	e := &OpError{Op: op, Text: firstReason(stderr), Err: err}
	n := refusedLine(stderr)
	lines := strings.Split(input, "\n")
	if n < 1 || n > len(lines) {
		return e
	}
	// iptables-nft detects a jump to a missing target only at COMMIT, and then reports a line
	// number at or after the end of the input. So only the quoted name identifies the rule.
	if name := quotedName(stderr); name != "" && targetOf(lines[n-1]) != name && strings.HasSuffix(e.Text, "does not exist") {
		for i := n - 2; i >= 0 && !strings.HasPrefix(lines[i], "*"); i-- {
			if targetOf(lines[i]) == name {
				n = i + 1
			}
		}
	}
	e.Line, e.Input = n, lines[n-1]
	return e
}

// refusedLine finds the number of the refused line in these formats:
//
//	iptables-restore: line 3 failed                             legacy, at the commit
//	line 7: CHAIN_DEL failed (Device or resource busy): ...     nft, at the commit
//	Error occurred at line: 3                                   both, while reading
//	iptables-restore: COMMIT expected at line 3                 both, at the end
func refusedLine(stderr string) int {
	m := regexp.MustCompile(`(?:\bline (\d+) failed|\bline (\d+): |\bat line:? (\d+))`).FindStringSubmatch(stderr)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1] + m[2] + m[3]) // exactly one of them matched
	if err != nil {
		return 0
	}
	return n
}

// quotedName returns the first quoted name, which may be a chain, a set or a target.
func quotedName(stderr string) string {
	if m := regexp.MustCompile("[`']([^`']+)'").FindStringSubmatch(stderr); m != nil {
		return m[1]
	}
	return ""
}

// firstReason returns the program's message as a single line. It omits advice and the line number,
// because OpError contains the line number separately.
func firstReason(stderr string) string {
	var parts []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "Try `") || strings.HasPrefix(line, "Error occurred at line") || strings.HasPrefix(line, "# Warning") {
			continue
		}
		parts = append(parts, line)
	}
	return strings.Join(parts, " ")
}
