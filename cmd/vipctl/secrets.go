package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/BurntSushi/toml"

	"vipd/store/tomlfile"
)

// hidden stands where a bundle leaves something out.
const hidden = "(hidden)"

// shareable is a configuration or services file without comments, and without what may be secret in it.
func shareable(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w; name the configuration of this vipd with --config", err)
	}
	doc, problems := tomlfile.Parse(file, text)
	if doc == nil {
		if len(problems) > 0 {
			return nil, errors.New(problems[0].String())
		}
		return nil, errors.New("it can't be read")
	}
	var b bytes.Buffer
	if err := toml.NewEncoder(&b).Encode(redact(doc.Tree())); err != nil {
		return nil, fmt.Errorf("writing TOML: %w", err)
	}
	return b.Bytes(), nil
}

// redact copies a value without secrets: what checks send, and the passwords in URLs.
func redact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			switch key {
			case "headers", "send", "password":
				out[key] = hidden
			default:
				out[key] = redact(value)
			}
		}
		return out
	case []map[string]any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = redact(v[i])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = redact(v[i])
		}
		return out
	case string:
		if u, err := url.Parse(v); err == nil && u.User != nil {
			u.User = url.User("hidden")
			return u.String()
		}
	}
	return v
}
