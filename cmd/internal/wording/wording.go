package wording

import (
	"fmt"
	"strconv"
	"strings"
)

// Count writes "1 service", "3 services".
func Count[N int | int64 | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(int64(n), 10) + " " + what + "s"
}

// Be is the verb for n things: "is" or "are".
func Be(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Do is that for what n things do: "does" or "do".
func Do(n int) string {
	if n == 1 {
		return "does"
	}
	return "do"
}

// List writes "a, b and c", or with another word before the last.
func List(all []string, word string) string {
	last := len(all) - 1
	if last < 1 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:last], ", ") + " " + word + " " + all[last]
}

// Some writes "a, b and 5 more" of more than most, and "none" of none.
func Some(all []string, most int) string {
	switch more := len(all) - most; {
	case len(all) == 0:
		return "none"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), more)
	}
	return strings.Join(all, ", ")
}
