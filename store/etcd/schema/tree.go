package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// maxDepth is the maximum nesting of a value. A service needs four levels.
const maxDepth = 16

// ParseObject parses a JSON object for the decoders of package balancer. Numbers remain text, so
// they are not rounded. Unlike encoding/json, it refuses duplicate names and excessive nesting.
func ParseObject(text []byte) (map[string]any, error) {
	// The parser needs no error handling, because the JSON is valid.
	if !json.Valid(text) {
		return nil, syntaxError(text)
	}
	p := parser{text: text}
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
type parser struct {
	text []byte
	at   int
}

func (p *parser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *parser) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("is nested deeper than %d levels", maxDepth)
	}
	p.space()
	switch p.text[p.at] {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		return p.str()
	case 't':
		p.at += len("true")
		return true, nil
	case 'f':
		p.at += len("false")
		return false, nil
	case 'n':
		p.at += len("null")
		return nil, nil
	}
	return p.number(), nil
}

func (p *parser) number() json.Number {
	start := p.at
	for p.at < len(p.text) && strings.IndexByte("+-.0123456789eE", p.text[p.at]) >= 0 {
		p.at++
	}
	return json.Number(p.text[start:p.at])
}

func (p *parser) str() (string, error) {
	start := p.at
	plain := true
	for p.at++; p.text[p.at] != '"'; p.at++ {
		if p.text[p.at] == '\\' {
			p.at++
			plain = false
		}
		plain = plain && p.text[p.at] < 0x80
	}
	p.at++
	if plain {
		return string(p.text[start+1 : p.at-1]), nil
	}
	var s string
	err := json.Unmarshal(p.text[start:p.at], &s)
	return s, err
}

func (p *parser) object(depth int) (any, error) {
	object := map[string]any{}
	p.at++
	for p.space(); p.text[p.at] != '}'; p.space() {
		if p.text[p.at] == ',' {
			p.at++
			p.space()
		}
		name, err := p.str()
		if err != nil {
			return nil, err
		}
		if _, twice := object[name]; twice {
			return nil, fmt.Errorf("has %s twice", Quote(name))
		}
		p.space()
		p.at++ // the colon
		if object[name], err = p.value(depth + 1); err != nil {
			return nil, err
		}
	}
	p.at++
	return object, nil
}

func (p *parser) array(depth int) (any, error) {
	array := []any{}
	p.at++
	for p.space(); p.text[p.at] != ']'; p.space() {
		if p.text[p.at] == ',' {
			p.at++
		}
		value, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	p.at++
	return array, nil
}
