package main

import (
	"fmt"
	"strings"
)

// markdown converts Markdown text and adds it to the page: headings, paragraphs, code blocks and
// tables.
func (p *page) markdown(text string) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); {
		l := lines[i]
		end := i + 1
		until := func(stop func(string) bool) []string {
			for end < len(lines) && !stop(lines[end]) {
				end++
			}
			return lines[i:end]
		}
		switch {
		case strings.TrimSpace(l) == "":
		case strings.HasPrefix(l, "```"):
			block := until(func(s string) bool { return strings.HasPrefix(s, "```") })
			p.literal(block[1:])
			end++
		case strings.HasPrefix(l, "## "):
			p.heading(strings.ToUpper(plain(l[3:])))
		case strings.HasPrefix(l, "#"):
			p.subheading(strings.TrimLeft(l, "# "))
		case strings.HasPrefix(l, "|"):
			p.table(until(func(s string) bool { return !strings.HasPrefix(s, "|") }))
		default:
			p.paragraph(strings.Join(until(func(s string) bool {
				return strings.TrimSpace(s) == "" || strings.HasPrefix(s, "|") || strings.HasPrefix(s, "```")
			}), " "))
		}
		i = end
	}
}

// table writes each row of a Markdown table as an item. The first cell is the term, and the other
// cells are its text.
func (p *page) table(rows []string) {
	header := cells(rows[0])
	for _, row := range rows[min(2, len(rows)):] {
		var text []string
		term := ""
		for i, cell := range cells(row) {
			name := ""
			if i < len(header) {
				name = header[i]
			}
			switch {
			case i == 0:
				term = cell
			case name == "default":
				text = append(text, "Default: "+cell+".")
			case name == "meaning" || name == "":
				text = append(text, sentence(cell))
			default:
				text = append(text, fmt.Sprintf("%s: %s.", name, cell))
			}
		}
		p.item(term, strings.Join(text, " "))
	}
}

// sentence returns text with a full stop at its end, or "" if text is empty.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.TrimSuffix(text, ".") + "."
}

// cells returns the cells of a row of a Markdown table.
func cells(row string) []string {
	row = strings.ReplaceAll(strings.Trim(strings.TrimSpace(row), "|"), `\|`, "\x00")
	out := strings.Split(row, "|")
	for i := range out {
		out[i] = strings.TrimSpace(strings.ReplaceAll(out[i], "\x00", "|"))
	}
	return out
}
