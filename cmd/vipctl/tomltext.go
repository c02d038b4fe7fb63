package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"vipd/cmd/internal/api"
)

// servicesTOML writes definitions as a services file.
func servicesTOML(services []api.Service) string {
	var b strings.Builder
	for i := range services {
		if i > 0 {
			b.WriteByte('\n')
		}
		s := &services[i]
		fmt.Fprintf(&b, "[services.%s]\n", tomlKey(string(s.Name)))
		for _, field := range definedFields(s.Definition) {
			fmt.Fprintf(&b, "%s = %s\n", tomlKey(field), tomlValue(s.Definition[field], "  "))
		}
	}
	return b.String()
}

// definedFields lists the fields of a definition: vips, ports and endpoints, then the others, then health.
func definedFields(definition map[string]any) []string {
	return inOrder(definition, []string{"vips", "ports", "endpoints"}, []string{"health"})
}

// inOrder lists the keys that have a value: those in first, then the others, then those in last.
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
		return slices.Index(last, key) + 1 // 0: it is in neither
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
	return keys
}

// tomlValue writes a value that came as JSON. A list of several tables has one a line, behind indent; indent "" keeps
// all on one line.
func tomlValue(v any, indent string) string {
	switch v := v.(type) {
	case string:
		return tomlString(v)
	case float64:
		// JSON has one kind of number; definitions hold whole ones.
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []any:
		return tomlList(v, indent)
	case map[string]any:
		return tomlTable(v)
	}
	return fmt.Sprint(v)
}

func tomlList(list []any, indent string) string {
	parts := make([]string, len(list))
	tables := 0
	for i, v := range list {
		parts[i] = tomlValue(v, "")
		if _, ok := v.(map[string]any); ok {
			tables++
		}
	}
	if tables > 1 && indent != "" {
		return "[\n" + indent + strings.Join(parts, ",\n"+indent) + ",\n]"
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// tomlTable writes an inline table; what names an entry comes first.
func tomlTable(table map[string]any) string {
	keys := inOrder(table, []string{"type", "name", "address", "port", "protocol"}, nil)
	if len(keys) == 0 {
		return "{}"
	}
	parts := mapped(keys, func(key string) string { return tomlKey(key) + " = " + tomlValue(table[key], "") })
	return "{ " + strings.Join(parts, ", ") + " }"
}

func tomlKey(key string) string {
	bare := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
	}
	if key != "" && !strings.ContainsFunc(key, func(r rune) bool { return !bare(r) }) {
		return key
	}
	return tomlString(key)
}

// tomlString quotes text: TOML knows fewer escapes than Go.
func tomlString(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
