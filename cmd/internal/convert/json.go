package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"vipd/balancer/decode"
)

// jsonReader reads a JSON object and the line of each path in it.
type jsonReader struct {
	*json.Decoder
	text  string
	lines map[string]int
	// counted is the offset up to which lines have been counted, and line is the line at this
	// offset.
	counted, line int
}

// parseJSON parses an object. It returns the line of each path. If parsing fails, the path "" has
// the line of the error.
func parseJSON(text string) (map[string]any, map[string]int, error) {
	r := &jsonReader{Decoder: json.NewDecoder(strings.NewReader(text)), text: text, lines: map[string]int{}, line: 1}
	r.UseNumber()
	value, err := r.value("", 0)
	tree, isObject := value.(map[string]any)
	if err == nil && !isObject {
		err = errors.New("it is not an object")
	}
	if err == nil {
		if _, more := r.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is text after the object")
		}
	}
	if err != nil {
		r.lines[""] = r.now()
	}
	return tree, r.lines, err
}

// now returns the reader's current line.
func (r *jsonReader) now() int {
	offset := int(r.InputOffset())
	r.line += strings.Count(r.text[r.counted:offset], "\n")
	r.counted = offset
	return r.line
}

// value reads the value at a path.
func (r *jsonReader) value(path string, depth int) (any, error) {
	token, err := r.Token()
	if err != nil {
		return nil, err
	}
	if path != "" && r.lines[path] == 0 {
		r.lines[path] = r.now()
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("it is nested more than %d levels deep", maxDepth)
	}
	switch token {
	case json.Delim('{'):
		out := map[string]any{}
		for r.More() {
			key, err := r.Token()
			if err != nil {
				return nil, err
			}
			name := fmt.Sprint(key)
			at := decode.Join(path, name)
			r.lines[at] = r.now()
			if out[name], err = r.value(at, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = r.Token()
		return out, err
	case json.Delim('['):
		out := []any{}
		for r.More() {
			value, err := r.value(fmt.Sprintf("%s[%d]", path, len(out)), depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		_, err = r.Token()
		return out, err
	}
	return token, nil
}
