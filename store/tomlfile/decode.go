package tomlfile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/store"
)

// decodeServices decodes the [services.*] tables of doc.
func decodeServices(doc *Document, defaults map[string]any, lines map[string]balancer.FieldLines) (map[balancer.Name]definition[balancer.Service], []balancer.Problem) {
	table, _ := doc.tree["services"].(map[string]any)
	services := make(map[balancer.Name]definition[balancer.Service], len(table))
	if len(table) == 0 {
		return nil, nil
	}
	var problems []balancer.Problem
	in, folder := interner{}, doc.Folder()
	for _, key := range slices.Sorted(maps.Keys(table)) {
		name, path := balancer.Name(in.text(key)), decode.Join("services", key)
		fields, ok := in.own(table[key]).(map[string]any)
		if !ok {
			p := doc.noTable(path, table[key])
			p.Service, p.Field = name, ""
			services[name] = definition[balancer.Service]{origin: p.Origin}
			problems = append(problems, p)
			continue
		}
		service, found := balancer.DecodeService(name, balancer.ResolvePaths(fields, folder), defaults, doc.Under(path), balancer.SeverityError)
		problems = append(problems, found...)
		if service != nil {
			service.Origin.Fields = lines[path]
		}
		services[name] = definition[balancer.Service]{service, doc.Where(path), keysIn(fields)}
	}
	return services, problems
}

// decodeVIPs decodes the [vips."ADDRESS"] tables of doc. It omits tables with an invalid address.
func decodeVIPs(doc *Document, lines map[string]balancer.FieldLines) (map[netip.Addr]definition[balancer.VIP], []balancer.Problem) {
	table, _ := doc.tree["vips"].(map[string]any)
	var problems []balancer.Problem
	vips := make(map[netip.Addr]definition[balancer.VIP], len(table))
	in := interner{}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		path := decode.Join("vips", key)
		fields, ok := in.own(table[key]).(map[string]any)
		if !ok {
			problems = append(problems, doc.noTable(path, table[key]))
			continue
		}
		vip, found := balancer.DecodeVIP(key, fields, doc.Under(path), balancer.SeverityError)
		for _, p := range found {
			p.Field = strings.TrimSuffix(path+"."+p.Field, ".")
			problems = append(problems, p)
		}
		addr, err := decode.ParseAddr(key)
		if err != nil {
			continue
		}
		if vip != nil {
			vip.Origin.Fields = lines[path]
		}
		vips[addr] = definition[balancer.VIP]{vip, doc.Where(path), keysIn(fields)}
	}
	return vips, problems
}

// Sections returns a problem for each of the sections "services" and "vips" that is not a table.
func Sections(d store.Document) (problems []balancer.Problem) {
	for _, needs := range [][2]string{
		{"services", "needs a table for each service, such as [services.web]"},
		{"vips", `needs a table for each address, such as [vips."192.168.1.100"]`},
	} {
		section, text := needs[0], needs[1]
		raw, exists := d.Tree()[section]
		if _, ok := raw.(map[string]any); exists && !ok {
			problems = append(problems, balancer.Problem{Severity: balancer.SeverityError, Origin: d.Where(section), Field: section, Text: text})
		}
	}
	return problems
}

// noTable returns a problem about the value at path, which must be a table.
func (d *Document) noTable(path string, raw any) balancer.Problem {
	p := balancer.Problem{Severity: balancer.SeverityError, Origin: d.Where(path), Field: path}
	p.Text = fmt.Sprintf("must be a table: write [%s]", path)
	if _, list := raw.([]map[string]any); list {
		p.Text = fmt.Sprintf("is a list of tables; write [%s] with single brackets", path)
	}
	return p
}

// strangers returns a problem for each section of doc other than "services" and "vips". The
// parameter main is the path of the file that should contain the daemon's sections, or "" if
// unknown.
func strangers(doc *Document, main string) []balancer.Problem {
	var problems []balancer.Problem
	for _, key := range slices.Sorted(maps.Keys(doc.tree)) {
		if key == "services" || key == "vips" {
			continue
		}
		path := decode.Join("", key)
		text := "only [services.NAME] and [vips.\"ADDRESS\"] tables belong in this file"
		fields, _ := doc.tree[key].(map[string]any)
		switch {
		case decode.Nearest(key, []string{"services", "vips"}) != "":
			text += fmt.Sprintf("; did you mean %q?", decode.Nearest(key, []string{"services", "vips"}))
		case fields["vips"] != nil || fields["ports"] != nil || fields["endpoints"] != nil:
			text += fmt.Sprintf("; did you mean [services.%s]?", path)
		case main != "":
			text += "; everything else belongs in " + main
		}
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityError, Origin: doc.Where(path), Field: path, Text: text,
		})
	}
	return problems
}

// interner copies the parser's strings. These strings are parts of the text, so without copies, the
// whole text would stay in memory as long as a service uses one of them.
type interner map[string]string

func (in interner) text(s string) string {
	own, known := in[s]
	if !known {
		own = strings.Clone(s)
		in[own] = own
	}
	return own
}

func (in interner) own(value any) any {
	switch value := value.(type) {
	case string:
		return in.text(value)
	case map[string]any:
		return in.table(value)
	case []any:
		list := make([]any, len(value))
		for i := range value {
			list[i] = in.own(value[i])
		}
		return list
	case []map[string]any:
		list := make([]map[string]any, len(value))
		for i := range value {
			list[i] = in.table(value[i])
		}
		return list
	}
	return value
}

func (in interner) table(value map[string]any) map[string]any {
	table := make(map[string]any, len(value))
	for key, inner := range value {
		table[in.text(key)] = in.own(inner)
	}
	return table
}
