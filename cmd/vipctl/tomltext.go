package main

import (
	"fmt"
	"strings"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/tomltext"
)

// servicesTOML writes definitions as a services file.
func servicesTOML(services []api.Service) string {
	var b strings.Builder
	for i := range services {
		if i > 0 {
			b.WriteByte('\n')
		}
		s := &services[i]
		b.WriteString(tableTOML("services", string(s.Name), s.Definition))
	}
	return b.String()
}

// tableTOML writes a definition of a section as a services file has it.
func tableTOML(section, name string, fields map[string]any) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s.%s]\n", section, tomltext.Key(name))
	for _, field := range tomltext.Fields(fields) {
		fmt.Fprintf(&b, "%s = %s\n", tomltext.Key(field), tomltext.Value(fields[field], "  "))
	}
	return b.String()
}
