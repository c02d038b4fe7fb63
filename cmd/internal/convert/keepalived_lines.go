package convert

import (
	"fmt"
	"strings"
)

const (
	// maxReplacements is the maximum number of variables that are replaced in one line.
	maxReplacements = 200
	// maxLines is the maximum number of lines after replacement. It is needed because multi-line
	// variables may refer to each other.
	maxLines = 1 << 17
)

// keepalivedLines replaces the variables in the lines of keepalived's configuration.
type keepalivedLines struct {
	*draft
	// variables maps each name to the lines of its definition, such as $NAME=value.
	variables map[string][]sourceLine
	out       []sourceLine
}

// keepalivedLines returns the origin's lines without comments, and with variables replaced by their
// values.
func (d *draft) keepalivedLines() []sourceLine {
	k := &keepalivedLines{draft: d, variables: map[string][]sourceLine{}}
	for i := 0; i < len(d.lines); {
		var lines []sourceLine
		for continued := true; continued && i < len(d.lines); i++ {
			var text string
			text, continued = uncommented(d.lines[i])
			lines = append(lines, sourceLine{text: text, line: i + 1})
		}
		k.read(lines)
	}
	return k.out
}

// uncommented returns a line without its comment, and reports whether it continues on the next
// line. Comments may start within a word.
func uncommented(text string) (string, bool) {
	var out strings.Builder
	inQuotes, inComment := false, false
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && strings.TrimRight(text[i+1:], " \t") == "" {
			return out.String(), true
		}
		isMark := c == '#' || c == '!'
		if inComment {
			continue
		}
		switch {
		case c == '"':
			inQuotes = !inQuotes
			out.WriteByte(c)
		case c == '\\' && !inQuotes && (text[i+1] == '#' || text[i+1] == '!'):
			i++
			out.WriteByte(text[i])
		case c == '\\':
			out.WriteString(text[i : i+2])
			i++
		case isMark && !inQuotes:
			inComment = true
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), false
}

// read joins lines. If the result defines a variable, read stores the definition, and otherwise it
// adds the result to the output.
func (k *keepalivedLines) read(lines []sourceLine) {
	text := strings.TrimSpace(lines[0].text)
	if strings.HasPrefix(text, "@") {
		condition, rest, _ := strings.Cut(text, " ")
		text = strings.TrimSpace(rest)
		for i := range lines {
			lines[i].doubt = fmt.Sprintf("the line is for some hosts only (%s): convert a file for each host, with that host's lines", plain(condition))
		}
	}
	if name, value, isDefinition := definition(text); isDefinition {
		lines[0].text = value
		if value == "" && len(lines) > 1 {
			lines = lines[1:]
		}
		k.variables[name] = lines
		return
	}
	lines[0].text = text
	if strings.HasPrefix(text, "~SEQ") || strings.HasPrefix(text, "~LST") {
		lines[0].doubt = "repeated lines are not converted: write out each of them"
		k.note(lines[0].line, "%s", lines[0].doubt)
	}
	joined := lines[0]
	for _, l := range lines[1:] {
		joined.text += " " + strings.TrimSpace(l.text)
	}
	k.expand(joined, 0)
}

// definition splits $NAME=value. ok reports whether the text has this form.
func definition(text string) (name, value string, ok bool) {
	if !strings.HasPrefix(text, "$") {
		return "", "", false
	}
	end := 1 + nameLength(text[1:])
	rest := strings.TrimLeft(text[end:], " \t")
	value, ok = strings.CutPrefix(rest, "=")
	return text[1:end], strings.TrimSpace(value), ok && end > 1
}

// nameLength returns the length of the variable name at the beginning of text.
func nameLength(text string) int {
	for i := range len(text) {
		c := text[i]
		isLetter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		isDigit := c >= '0' && c <= '9'
		if !isLetter && !(isDigit && i > 0) {
			return i
		}
	}
	return len(text)
}

// expand replaces the variables in a line and adds the result. A multi-line variable produces
// several lines.
func (k *keepalivedLines) expand(l sourceLine, depth int) {
	if depth > maxReplacements || len(k.out) > maxLines {
		l.doubt = "its variables refer to each other, or there are too many variables"
		k.note(l.line, "%s", l.doubt)
		k.add(l)
		return
	}
	for at := 0; ; at++ {
		i := strings.IndexByte(l.text[at:], '$')
		if i < 0 {
			k.add(l)
			return
		}
		at += i
		name, end := variableAt(l.text, at)
		value, known := k.variables[name]
		if !known {
			continue
		}
		if len(value) > 1 {
			k.expandLines(l, at, end, value, depth)
			return
		}
		l.text = l.text[:at] + value[0].text + l.text[end:]
		if value[0].doubt != "" {
			l.doubt = value[0].doubt
		}
		k.expand(l, depth+1)
		return
	}
}

// expandLines adds the lines that result if a multi-line variable replaces the text of l between
// the offsets at and end.
func (k *keepalivedLines) expandLines(l sourceLine, at, end int, value []sourceLine, depth int) {
	for i, v := range value {
		if i == 0 {
			v.text = l.text[:at] + v.text
		}
		if i == len(value)-1 {
			v.text += l.text[end:]
		}
		if l.doubt != "" {
			v.doubt = l.doubt
		}
		k.expand(v, depth+1)
	}
}

// variableAt returns the name of the variable whose dollar sign is at the offset at, and the offset
// of its end.
func variableAt(text string, at int) (name string, end int) {
	begin := at + 1
	braced := strings.HasPrefix(text[begin:], "{")
	if braced {
		begin++
	}
	end = begin + nameLength(text[begin:])
	name = text[begin:end]
	if braced && strings.HasPrefix(text[end:], "}") {
		end++
	}
	return name, end
}

func (k *keepalivedLines) add(l sourceLine) {
	k.out = append(k.out, l)
}
