package wording

import (
	"fmt"
	"strconv"
	"strings"
)

// Count formats a number and a noun, such as "1 service" or "3 services".
func Count[N int | int64 | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatInt(int64(n), 10) + " " + what + "s"
}

// Be returns the form of "be" for n objects: "is" or "are".
func Be(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Do returns the form of "do" for n objects: "does" or "do".
func Do(n int) string {
	if n == 1 {
		return "does"
	}
	return "do"
}

// List joins a list's elements, such as "a, b and c". word is the conjunction before the last
// element.
func List(all []string, word string) string {
	last := len(all) - 1
	if last < 1 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:last], ", ") + " " + word + " " + all[last]
}

// Some joins a list's elements with commas. If there are more than limit, it returns the first
// elements and a count, such as "a, b and 5 more". If the list is empty, it returns "none".
func Some(all []string, limit int) string {
	switch more := len(all) - limit; {
	case len(all) == 0:
		return "none"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(all[:limit], ", "), more)
	}
	return strings.Join(all, ", ")
}
