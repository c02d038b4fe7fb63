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

// template is text with paths, such as {.mode}. Each path is replaced with its values, separated by
// spaces. {"\n"} is a quoted string with escapes. {range PATH}...{end} is repeated for each value
// of the path.
type template []part

// part is a part of a template: text, or a path, optionally with a template for each value of the
// path.
type part struct {
	verbatim string
	path     *jsonpath.JSONPath
	ofOne    bool // the path starts with a field
	each     template
	isRange  bool
}

// parseTemplate parses a template or a single path.
func parseTemplate(text string) (template, error) {
	if text == "" {
		return nil, errors.New(`: write a template, such as {.mode.in_use}`)
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

// parseParts parses a template up to its end or, inside a range, up to {end}. rest is the text
// after {end}.
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
			return nil, "", fmt.Errorf("{%s has no closing brace", after)
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

// closing returns the index of the } that ends a path, or -1 if there is none. It ignores } in
// quotation marks.
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
			err = fmt.Errorf("%s is not text in quotation marks, such as {\"\\n\"}", inner)
		}
		return p, err
	}
	path, isRange := strings.CutPrefix(inner, "range ")
	path = strings.TrimSpace(path)
	if items, isList := strings.CutPrefix(strings.TrimPrefix(path, "."), "items["); isList {
		path = "[" + items // kubectl's lists have their items below it
	}
	p.isRange = isRange
	switch { // kubectl also permits paths without $, and @ or nothing for the whole document
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
		return p, fmt.Errorf("{%s} is not a JSONPath, such as {[*].name}", inner)
	}
	return p, nil
}

// text fills in the template from a document. It adds a newline at the end if needed. A list with
// one element is treated as that element if a path starts with a field, because "get services web"
// also prints a list.
func (t template) text(doc *yaml.Node) (string, error) {
	if doc.Kind == yaml.SequenceNode && !t.isForList() {
		if len(doc.Content) != 1 {
			return "", fmt.Errorf("there are %d objects, but the template is for one: start its paths with [*], or name one object", len(doc.Content))
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

// isForList reports whether the template is for a list as a whole: none of its paths starts with a
// field.
func (t template) isForList() bool {
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

// value returns a string or a number unchanged, and formats other values as JSON on a single line.
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
