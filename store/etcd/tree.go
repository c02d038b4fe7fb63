package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// deepest is how deep a value may be nested; a service needs four.
const deepest = 16

// ParseObject reads a JSON object as balancer decodes it: numbers stay text, so that none is rounded. Unlike
// encoding/json it refuses names that come twice, and nesting that no value needs.
func ParseObject(text []byte) (map[string]any, error) {
	// Checking first keeps the parser free of everything that can be wrong with JSON.
	if !json.Valid(text) {
		return nil, syntaxError(text)
	}
	p := parser{json.NewDecoder(bytes.NewReader(text))}
	p.UseNumber()
	value, err := p.value(0)
	if err != nil {
		return nil, err
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("is not a JSON object: write { ... }")
	}
	return object, nil
}

func syntaxError(text []byte) error {
	var raw json.RawMessage
	err := json.Unmarshal(text, &raw)
	var syntax *json.SyntaxError
	if len(bytes.TrimSpace(text)) == 0 {
		return errors.New("is empty: write a JSON object")
	}
	if errors.As(err, &syntax) {
		return fmt.Errorf("is not JSON: %s at byte %d", syntax, syntax.Offset)
	}
	return errors.New("is not JSON")
}

// parser reads text that is known to be valid JSON.
type parser struct{ *json.Decoder }

func (p parser) value(depth int) (any, error) {
	if depth > deepest {
		return nil, fmt.Errorf("is nested deeper than %d levels", deepest)
	}
	token, err := p.Token()
	switch token {
	case json.Delim('{'):
		return p.object(depth)
	case json.Delim('['):
		array := []any{}
		for p.More() && err == nil {
			var value any
			value, err = p.value(depth + 1)
			array = append(array, value)
		}
		_, _ = p.Token() // the end
		return array, err
	}
	return token, err
}

func (p parser) object(depth int) (any, error) {
	object := map[string]any{}
	for p.More() {
		token, err := p.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if _, twice := object[name]; twice {
			return nil, fmt.Errorf("has %s twice", quote(name))
		}
		if object[name], err = p.value(depth + 1); err != nil {
			return nil, err
		}
	}
	_, _ = p.Token() // the end
	return object, nil
}
