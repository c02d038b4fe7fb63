package tomltext

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// Fields returns the names of a definition's fields in the order for output: vips, ports and
// endpoints, then the other fields, then health.
func Fields(definition map[string]any) []string {
	return inOrder(definition, []string{"vips", "ports", "endpoints"}, []string{"health"})
}

// inOrder returns the table's keys that have a value: the keys in first, then all keys that are in
// neither list in alphabetical order, and then the keys in last.
func inOrder(table map[string]any, first, last []string) []string {
	var keys []string
	for key, value := range table {
		if value != nil {
			keys = append(keys, key)
		}
	}
	place := func(key string) int {
		if i := slices.Index(first, key); i >= 0 {
			return i - len(first)
		}
		return slices.Index(last, key) + 1 // 0 means that the key is in neither list
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
	return keys
}

// Value formats a value that was decoded from JSON. A list of several tables gets a line for each
// table, which starts with indent. If indent is "", the result is a single line.
func Value(v any, indent string) string {
	switch v := v.(type) {
	case string:
		return Quote(v)
	case float64:
		// JSON numbers are decoded as float64, but definitions need integers.
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []any:
		return list(v, indent)
	case map[string]any:
		return table(v)
	}
	return fmt.Sprint(v)
}

func list(values []any, indent string) string {
	parts := make([]string, len(values))
	tables := 0
	for i, v := range values {
		parts[i] = Value(v, "")
		if _, ok := v.(map[string]any); ok {
			tables++
		}
	}
	if tables > 1 && indent != "" {
		return "[\n" + indent + strings.Join(parts, ",\n"+indent) + ",\n]"
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// table formats an inline table. Keys that identify the table, such as name and address, are first.
func table(t map[string]any) string {
	keys := inOrder(t, []string{"type", "name", "address", "port", "protocol", "send", "send_hex"}, nil)
	if len(keys) == 0 {
		return "{}"
	}
	parts := make([]string, len(keys))
	for i, key := range keys {
		parts[i] = Key(key) + " = " + Value(t[key], "")
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}

// Key formats a key. It adds quotes if TOML requires them.
func Key(key string) string { return toml.Key{key}.String() }

// Quote formats a string in quotes. TOML has fewer escapes than Go.
func Quote(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD") // text from a file may have another encoding
	if key := Key(text); key != text {
		return key
	}
	return `"` + text + `"`
}
