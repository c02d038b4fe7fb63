package main

import (
	"fmt"
	"math"
	"slices"
	"sort"
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
	rank := []string{"vips", "ports", "endpoints", "", "health"}
	place := func(field string) int {
		if i := slices.Index(rank, field); i >= 0 {
			return i
		}
		return slices.Index(rank, "")
	}
	var fields []string
	for field, value := range definition {
		if value != nil {
			fields = append(fields, field)
		}
	}
	sort.Slice(fields, func(i, j int) bool {
		if a, b := place(fields[i]), place(fields[j]); a != b {
			return a < b
		}
		return fields[i] < fields[j]
	})
	return fields
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
	rank := []string{"type", "name", "address", "port", "protocol"}
	place := func(key string) int {
		if i := slices.Index(rank, key); i >= 0 {
			return i
		}
		return len(rank)
	}
	var keys []string
	for key, value := range table {
		if value != nil {
			keys = append(keys, key)
		}
	}
	sort.Slice(keys, func(i, j int) bool {
		if a, b := place(keys[i]), place(keys[j]); a != b {
			return a < b
		}
		return keys[i] < keys[j]
	})
	if len(keys) == 0 {
		return "{}"
	}
	parts := make([]string, len(keys))
	for i, key := range keys {
		parts[i] = tomlKey(key) + " = " + tomlValue(table[key], "")
	}
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
