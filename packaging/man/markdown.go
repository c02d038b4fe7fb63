package main

import (
	"fmt"
	"strings"
)

// markdown writes a part of a document: headings, paragraphs, blocks, lists and tables.
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

// table writes each row as an item whose term is the first cell. A column named default follows it.
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

// sentence ends text with a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.TrimSuffix(text, ".") + "."
}

// cells splits a row of a table.
func cells(row string) []string {
	row = strings.ReplaceAll(strings.Trim(strings.TrimSpace(row), "|"), `\|`, "\x00")
	out := strings.Split(row, "|")
	for i := range out {
		out[i] = strings.TrimSpace(strings.ReplaceAll(out[i], "\x00", "|"))
	}
	return out
}
