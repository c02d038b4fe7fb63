package main

import "strings"

// help is what a program prints with --help.
type help struct {
	// usage is the first line, or what stands under "Usage:".
	usage string
	// paragraphs come before the first list.
	paragraphs []string
	// lists are what stands indented under a line that ends with a colon, by that line.
	lists map[string][]entry
	// order are the keys of lists as they come.
	order []string
	// last are paragraphs behind the lists.
	last []string
}

// entry is an item of a list: the term and its text.
type entry struct{ term, text string }

// isCommands reports whether a list has commands.
func isCommands(list string) bool { return strings.HasPrefix(list, "Commands") }

// commands returns the entries of all lists of commands.
func (h *help) commands() (all []entry) {
	for _, list := range h.order {
		if isCommands(list) {
			all = append(all, h.lists[list]...)
		}
	}
	return all
}

// parseHelp reads the text.
func parseHelp(text string) *help {
	h := &help{lists: map[string][]entry{}}
	var paragraph []string
	list := ""
	flush := func() {
		joined := strings.Join(paragraph, " ")
		switch paragraph = nil; {
		case joined == "":
		case h.usage == "":
			h.usage = joined
		case len(h.order) == 0:
			h.paragraphs = append(h.paragraphs, joined)
		default:
			h.last = append(h.last, joined)
		}
	}
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n ")
		switch {
		case strings.HasPrefix(l, "  ") && list != "":
			h.lists[list] = addTo(h.lists[list], l)
		case l == "":
			flush()
			list = ""
		case strings.HasSuffix(l, ":"):
			list = strings.Join(append(paragraph, strings.TrimSuffix(l, ":")), " ")
			paragraph = nil
			h.order = append(h.order, list)
		default:
			paragraph = append(paragraph, l)
		}
	}
	flush()
	return h
}

// addTo adds a line to a list: a term begins behind two spaces, and what is indented deeper goes on.
func addTo(list []entry, l string) []entry {
	rest := l[2:]
	if strings.HasPrefix(rest, " ") && len(list) > 0 {
		last := &list[len(list)-1]
		last.text = strings.TrimSpace(last.text + " " + strings.TrimSpace(rest))
		return list
	}
	term, text, _ := strings.Cut(rest, "  ")
	return append(list, entry{term, strings.TrimSpace(text)})
}
