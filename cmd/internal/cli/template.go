package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/speakeasy-api/jsonpath/pkg/jsonpath"
	"gopkg.in/yaml.v3"
)

// template is a text with paths: {.mode} is what is found there, several with spaces between them; {"\n"} a text with
// escapes; {range PATH}...{end} is done for each that is found.
type template []part

// part is one of a template's: a text, or a path, with what is done for each that it finds, if anything.
type part struct {
	verbatim string
	path     *jsonpath.JSONPath
	ofOne    bool // the path begins with a field
	each     template
	isRange  bool
}

// parseTemplate takes a template, or a path alone.
func parseTemplate(text string) (template, error) {
	if text == "" {
		return nil, errors.New(`: give a template, such as {.mode.in_use}`)
	}
	if !strings.Contains(text, "{") {
		text = "{" + text + "}"
	}
	t, rest, err := parseParts(text, false)
	if err == nil && rest != "" {
		err = errors.New("{end} without {range}")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	return t, nil
}

// parseParts returns what follows the {end} of a range.
func parseParts(text string, inRange bool) (t template, rest string, err error) {
	for text != "" {
		before, after, found := strings.Cut(text, "{")
		if before != "" {
			t = append(t, part{verbatim: before})
		}
		if !found {
			break
		}
		end := closing(after)
		if end < 0 {
			return nil, "", fmt.Errorf("{%s has no }", after)
		}
		inner := strings.TrimSpace(after[:end])
		text = after[end+1:]
		if inner == "end" {
			if !inRange {
				return nil, "", errors.New("{end} without {range}")
			}
			return t, text, nil
		}
		p, err := parsePart(inner)
		if err == nil && p.isRange {
			p.each, text, err = parseParts(text, true)
		}
		if err != nil {
			return nil, "", err
		}
		t = append(t, p)
	}
	if inRange {
		return nil, "", errors.New("{range} without {end}")
	}
	return t, "", nil
}

// closing is where the } stands that ends a path, or -1. One in quotation marks does not.
func closing(text string) int {
	quote := rune(0)
	for i, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
		case r == '"' || r == '\'':
			quote = r
		case r == '}':
			return i
		}
	}
	return -1
}

func parsePart(inner string) (p part, err error) {
	if strings.HasPrefix(inner, `"`) {
		p.verbatim, err = strconv.Unquote(inner)
		if err != nil {
			err = fmt.Errorf("%s is no text in quotation marks, such as {\"\\n\"}", inner)
		}
		return p, err
	}
	path, isRange := strings.CutPrefix(inner, "range ")
	path = strings.TrimSpace(path)
	if of, isList := strings.CutPrefix(strings.TrimPrefix(path, "."), "items["); isList {
		path = "[" + of // kubectl's lists have their items below that
	}
	p.isRange = isRange
	switch { // kubectl's habits: no $, and @ or nothing for all of it
	case strings.HasPrefix(path, "$"):
	case path == "" || path == "." || path == "@":
		path = "$"
	case strings.HasPrefix(path, ".["):
		path = "$" + path[1:]
	case strings.HasPrefix(path, "@"):
		path = "$" + path[1:]
	case strings.HasPrefix(path, ".") || strings.HasPrefix(path, "["):
		path = "$" + path
	default:
		path = "$." + path
	}
	p.ofOne = len(path) > 2 && path[1] == '.' && path[2] != '.' && path[2] != '*'
	if p.path, err = jsonpath.NewPath(path); err != nil {
		return p, fmt.Errorf("{%s} is no JSONPath, such as {[*].name}", inner)
	}
	return p, nil
}

// text fills the template in from a document, and ends the last line. A list of one is what is in it, unless a path takes it for a
// list: "get services web" lists one.
func (t template) text(doc *yaml.Node) (string, error) {
	if doc.Kind == yaml.SequenceNode && !t.takesList() {
		if len(doc.Content) != 1 {
			return "", fmt.Errorf("there are %d, and the template is for one: begin its paths with [*], or name one", len(doc.Content))
		}
		doc = doc.Content[0]
	}
	var b strings.Builder
	if err := t.fill(&b, doc); err != nil {
		return "", err
	}
	if text := b.String(); text == "" || strings.HasSuffix(text, "\n") {
		return text, nil
	}
	return b.String() + "\n", nil
}

// takesList reports whether a path of the template is for a list, or there is none.
func (t template) takesList() bool {
	return !slices.ContainsFunc(t, func(p part) bool { return p.ofOne })
}

func (t template) fill(b *strings.Builder, in *yaml.Node) error {
	for _, p := range t {
		b.WriteString(p.verbatim)
		if p.path == nil {
			continue
		}
		for i, n := range p.path.Query(in) {
			if p.isRange {
				if err := p.each.fill(b, n); err != nil {
					return err
				}
				continue
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			text, err := value(n)
			if err != nil {
				return err
			}
			b.WriteString(text)
		}
	}
	return nil
}

// value is a text or a number as it is, and all else as JSON in one line.
func value(n *yaml.Node) (string, error) {
	if n.Kind == yaml.ScalarNode {
		return n.Value, nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return "", fmt.Errorf("writing JSON: %w", err)
	}
	text, err := json.Marshal(v)
	return string(text), err
}
