package decode

import (
	"fmt"
	"slices"
	"strings"
)

// Nearest returns the candidate that word probably means, or "" if no candidate is similar. It
// permits about one typing error per three letters: an added, missing or wrong letter, or two
// swapped letters. If no candidate is similar enough, it returns the first candidate that starts
// with word. If no candidate does, it returns the only candidate that ends in "_" and word, such as
// "source_rate" for "rate".
func Nearest(word string, candidates []string) string {
	const maxLength = 64
	if len(word) > maxLength {
		return ""
	}
	word = strings.ToLower(word)
	best, bestDistance := "", min(max(1, len(word)/3), len(word)-1)+1
	for _, k := range candidates {
		if slips := distance(word, strings.ToLower(k)); slips < bestDistance {
			best, bestDistance = k, slips
		}
	}
	if best != "" || len(word) < 2 {
		return best
	}
	if i := slices.IndexFunc(candidates, func(k string) bool { return strings.HasPrefix(k, word) }); i >= 0 {
		return candidates[i]
	}
	endsOtherwise := func(k string) bool { return !strings.HasSuffix(k, "_"+word) }
	if ends := slices.DeleteFunc(slices.Clone(candidates), endsOtherwise); len(ends) == 1 {
		return ends[0]
	}
	return ""
}

// DidYouMean returns the end of a sentence that suggests the most similar known word, or "" if no
// word is similar.
func DidYouMean(word string, known []string) string {
	if n := Nearest(word, known); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return ""
}

// distance counts the typing errors between a and b, in bytes.
func distance(a, b string) int {
	before := make([]int, len(b)+1)
	last := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
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
