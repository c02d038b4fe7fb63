package main

import (
	"fmt"
	"strings"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/tomltext"
	"vipd/store/etcd"
)

// servicesTOML writes definitions as a services file.
func servicesTOML(services []api.Service) string {
	var b strings.Builder
	for i := range services {
		if i > 0 {
			b.WriteByte('\n')
		}
		s := &services[i]
		fmt.Fprintf(&b, "[services.%s]\n", tomltext.Key(string(s.Name)))
		for _, field := range tomltext.Fields(s.Definition) {
			fmt.Fprintf(&b, "%s = %s\n", tomltext.Key(field), tomltext.Value(s.Definition[field], "  "))
		}
	}
	return b.String()
}

// vipTOML writes the settings of an address as a services file has them.
func vipTOML(p *etcd.StoredPolicy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[vips.%s]\n", tomltext.Key(p.Addr.String()))
	for _, field := range tomltext.Fields(p.Fields) {
		fmt.Fprintf(&b, "%s = %s\n", tomltext.Key(field), tomltext.Value(p.Fields[field], "  "))
	}
	return b.String()
}
