package main

import "strings"

// help is the parsed --help output of a program.
type help struct {
	// usage is the first paragraph.
	usage string
	// paragraphs are the other paragraphs before the first list.
	paragraphs []string
	// lists maps each heading to the indented list below it. A heading is text that ends with a
	// colon, without the colon.
	lists map[string][]listItem
	// order holds the keys of lists in the order of the output.
	order []string
	// last holds the paragraphs after the first list.
	last []string
}

// listItem is an item of a list, such as a flag and its description.
type listItem struct{ term, text string }

// isCommands reports whether the list with this heading contains commands.
func isCommands(list string) bool { return strings.HasPrefix(list, "Commands") }

// commands returns the items of all lists of commands.
func (h *help) commands() (all []listItem) {
	for _, list := range h.order {
		if isCommands(list) {
			all = append(all, h.lists[list]...)
		}
	}
	return all
}

// parseHelp parses the --help output of a program.
func parseHelp(text string) *help {
	h := &help{lists: map[string][]listItem{}}
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

// addTo adds a line to a list. After two spaces, a new item starts. A line with more spaces
// continues the text of the last item.
func addTo(list []listItem, l string) []listItem {
	rest := l[2:]
	if strings.HasPrefix(rest, " ") && len(list) > 0 {
		last := &list[len(list)-1]
		last.text = strings.TrimSpace(last.text + " " + strings.TrimSpace(rest))
		return list
	}
	term, text, _ := strings.Cut(rest, "  ")
	return append(list, listItem{term, strings.TrimSpace(text)})
}
