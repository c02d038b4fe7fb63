package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/tomltext"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/tomlfile"
)

func exportVerb() *cli.Verb {
	return &cli.Verb{
		Name: "export", Args: "[NAME...]", Brief: "print the services in etcd, in the format that apply reads",
		About: `Prints all services and address settings in etcd, or only the named services,
sorted by name. "vipctl apply" of the output changes nothing: "auto" addresses
and unknown fields are kept. The output does not include overrides, or
endpoints that were registered separately.

TOML can't express null, which means the program's default even if a host has
[defaults]. A service with such a field is omitted with a message, and the
exit code is 1; -o json can express it.`,
		Example: "vipctl export > services.toml",
		Formats: []string{cli.FormTOML, cli.FormJSON}, Fleet: true,
		MaxArgs:  cli.AnyArgs,
		Complete: fleetNames,
		Run:      runExport,
	}
}

func runExport(c *cli.Call) error {
	w, err := c.Etcd()
	if err != nil {
		return err
	}
	d, err := w.Definitions(c)
	if err != nil {
		return fmt.Errorf("reading the services: %w", err)
	}
	all, err := named(c, d.Services)
	if err != nil {
		return err
	}
	texts, services, left := exportServices(c, all)
	everything := map[string]any{"services": services}
	if len(c.Args) == 0 {
		more, vips, err := exportVIPs(c, w)
		if err != nil {
			return err
		}
		if texts = append(texts, more...); len(vips) > 0 {
			everything["vips"] = vips
		}
	}
	err = c.Show(everything, func() string { return strings.Join(texts, "\n") })
	if err == nil && left > 0 {
		err = cli.ErrReported
	}
	return err
}

// exportServices returns the services in text form, and as tables by name. left is the number of
// services that can't be exported.
func exportServices(c *cli.Call, all []*definitions.Stored) (texts []string, tables map[balancer.Name]any, left int) {
	tables = map[balancer.Name]any{}
	for _, s := range all {
		text, err := exported(s, c.Format)
		if err != nil {
			c.Note("not exported: service %s: %v", s.Name, err)
			left++
			continue
		}
		texts, tables[s.Name] = append(texts, text), s.Fields
	}
	return texts, tables, left
}

// exportVIPs returns VIP settings in text form, and as tables by address.
func exportVIPs(c *cli.Call, w *etcd.Store) (texts []string, tables map[string]any, err error) {
	policies, err := w.Policies(c)
	if client.Forbidden(err) {
		c.Note("not exported: address settings: %v", err)
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading address settings: %w", err)
	}
	tables = map[string]any{}
	for _, p := range policies {
		texts, tables[p.Addr.String()] = append(texts, tableTOML("vips", p.Addr.String(), p.Fields)), p.Fields
	}
	return texts, tables, nil
}

// named returns the services that the arguments name, or all services without arguments.
func named(c *cli.Call, all []*definitions.Stored) ([]*definitions.Stored, error) {
	if len(c.Args) == 0 {
		return all, nil
	}
	names := lists.Mapped(c.Args, plainService)
	selected := slices.DeleteFunc(slices.Clone(all), func(s *definitions.Stored) bool { return !slices.Contains(names, string(s.Name)) })
	for _, name := range names {
		if !slices.ContainsFunc(selected, func(s *definitions.Stored) bool { return string(s.Name) == name }) {
			return nil, absent("service", name, " in etcd", lists.Mapped(all, func(s *definitions.Stored) string { return string(s.Name) }))
		}
	}
	return selected, nil
}

// exported formats a service as a services file, and verifies that the text decodes to the same
// service. For JSON it returns no text, because all services are exported in one object.
func exported(s *definitions.Stored, form string) (string, error) {
	if s.Service == nil {
		p := s.Problems[0]
		return "", fmt.Errorf("it can't be read: %s; apply another definition, or delete it", strings.TrimPrefix(p.Field+": "+p.Text, ": "))
	}
	if form == cli.FormJSON {
		return "", nil
	}
	text := tableTOML("services", string(s.Name), s.Fields)
	if doc, _ := tomlfile.Parse("", []byte(text)); doc != nil {
		tables, _ := doc.Tree()["services"].(map[string]any)
		if again, ok := tables[string(s.Name)].(map[string]any); ok && s.Matches(again) {
			return text, nil
		}
	}
	for field, value := range s.Fields {
		if value == nil {
			return "", fmt.Errorf("%s is null, which TOML can't express; \"-o json\" can", field)
		}
	}
	return "", errors.New("TOML can't express all of it; \"-o json\" can")
}

// servicesTOML formats definitions as a services file.
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

// tableTOML formats a definition as the table [section.name] in a services file.
func tableTOML(section, name string, fields map[string]any) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s.%s]\n", section, tomltext.Key(name))
	for _, field := range tomltext.Fields(fields) {
		fmt.Fprintf(&b, "%s = %s\n", tomltext.Key(field), tomltext.Value(fields[field], "  "))
	}
	return b.String()
}
