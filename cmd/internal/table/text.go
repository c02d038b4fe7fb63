package table

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Style is the colour or weight of text on a terminal.
type Style string

// These are the styles. The zero value is plain text.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Good   Style = "32"
	Notice Style = "33"
	Bad    Style = "31"
	Faint  Style = "2"
)

// Paint formats text in a style, for terminals.
func Paint(text string, s Style) string {
	if s == Plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Width returns the number of columns that text needs on a terminal. A combining mark needs none, a
// wide East Asian character or a pictograph needs two, and any other character needs one.
func Width(text string) int {
	n := 0
	for _, r := range text {
		switch {
		case r < utf8.RuneSelf: // faster than searching the Unicode tables
			n++
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana),
			r >= 0xff01 && r <= 0xff60, r >= 0x1f300 && r <= 0x1faff:
			n += 2
		default:
			n++
		}
	}
	return n
}

// Cut returns text if it has at most width columns, and otherwise its start and an ellipsis.
func Cut(text string, width int) string {
	if Width(text) <= width {
		return text
	}
	at := 0
	for i, r := range text {
		if at += Width(string(r)); at > width-1 {
			return strings.TrimRight(text[:i], " ") + "…"
		}
	}
	return text
}

// cutMiddle returns text if it has at most width columns, and otherwise its start, an ellipsis and
// its end.
func cutMiddle(text string, width int) string {
	if Width(text) <= width {
		return text
	}
	runes := []rune(text)
	from := 0
	to := len(runes)
	left := width - 1
	for tail := false; ; tail = !tail {
		next := runes[from]
		if tail {
			next = runes[to-1]
		}
		if left -= Width(string(next)); left < 0 {
			return string(runes[:from]) + "…" + string(runes[to:])
		}
		if tail {
			to--
		} else {
			from++
		}
	}
}

// Wrap breaks text at spaces into lines of at most width columns. A longer word gets its own line.
func Wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case Width(line)+1+Width(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
