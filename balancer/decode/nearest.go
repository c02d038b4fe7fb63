package decode

import (
	"fmt"
	"slices"
	"strings"
)

// Nearest returns the one of known that word probably means, or "" if none is near: about one slip
// (a letter too many, missing, wrong, or swapped with its neighbour) in three letters, or else the first that begins with word.
func Nearest(word string, known []string) string {
	const longest = 64
	if len(word) > longest {
		return ""
	}
	word = strings.ToLower(word)
	best, least := "", min(max(1, len(word)/3), len(word)-1)+1
	for _, k := range known {
		if slips := distance(word, strings.ToLower(k)); slips < least {
			best, least = k, slips
		}
	}
	if i := slices.IndexFunc(known, func(k string) bool { return strings.HasPrefix(k, word) }); best == "" && len(word) > 1 && i >= 0 {
		return known[i]
	}
	return best
}

// DidYouMean ends a sentence with the nearest of known, if one is near.
func DidYouMean(word string, known []string) string {
	if n := Nearest(word, known); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return ""
}

// distance counts the slips between a and b, by bytes.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
