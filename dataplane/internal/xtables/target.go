package xtables

import (
	"slices"
	"strings"
)

// targetOf returns the target of the jump or goto in a rule. It ignores comments.
func targetOf(rule string) string {
	var words []string
	for len(rule) > 0 {
		var word string
		if quoted, ok := strings.CutPrefix(rule, `"`); ok {
			end := 0
			for end < len(quoted) && quoted[end] != '"' {
				if quoted[end] == '\\' {
					end++
				}
				end++
			}
			word, rule = `"`, strings.TrimLeft(quoted[min(end+1, len(quoted)):], " ")
		} else {
			word, rule, _ = strings.Cut(rule, " ")
		}
		words = append(words, word)
	}
	if i := max(slices.Index(words, "-j"), slices.Index(words, "-g")); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}
