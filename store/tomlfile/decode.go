package tomlfile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// decodeServices reads the [services.*] of doc. A service that is as it was in old keeps its pointer.
func decodeServices(doc *Document, defaults map[string]any, old *contents) (map[balancer.Name]definition, []balancer.Problem) {
	raw, there := doc.tree["services"]
	if !there {
		return nil, nil
	}
	table, ok := raw.(map[string]any)
	if !ok {
		return nil, []balancer.Problem{{
			Severity: balancer.SeverityError, Origin: doc.Where("services"), Field: "services",
			Text: "needs a table for each service, such as [services.web]",
		}}
	}
	services := make(map[balancer.Name]definition, len(table))
	var problems []balancer.Problem
	in, folder, fields := interner{}, doc.Folder(), doc.fieldLines()
	for _, key := range slices.Sorted(maps.Keys(table)) {
		name := balancer.Name(in.text(key))
		d, found := decodeService(doc, folder, name, in.own(table[key]), defaults)
		if d.service != nil {
			d.service.Origin.Fields = fields[key]
		}
		if old != nil && d.service != nil {
			if former := old.services[name].service; former != nil && reflect.DeepEqual(former, d.service) {
				d.service = former
			}
		}
		services[name] = d
		problems = append(problems, found...)
	}
	return services, problems
}

func decodeService(doc *Document, folder string, name balancer.Name, raw any, defaults map[string]any) (definition, []balancer.Problem) {
	path := string(appendKey([]byte("services"), string(name)))
	fields, ok := raw.(map[string]any)
	if ok {
		service, problems := balancer.DecodeService(name, balancer.ResolvePaths(fields, folder), defaults, doc.Under(path), balancer.SeverityError)
		return definition{service, doc.Where(path)}, problems
	}
	p := balancer.Problem{Severity: balancer.SeverityError, Origin: doc.Where(path), Service: name}
	p.Text = fmt.Sprintf("needs a table: [%s]", path)
	if _, list := raw.([]map[string]any); list {
		p.Text = fmt.Sprintf("is a list of tables; write [%s] with single brackets", path)
	}
	return definition{nil, p.Origin}, []balancer.Problem{p}
}

// strangers are the problems of a file that may hold services only: everything else in it. Main is the file where
// daemon sections belong; "": unknown.
func strangers(doc *Document, main string) []balancer.Problem {
	var problems []balancer.Problem
	for _, key := range slices.Sorted(maps.Keys(doc.tree)) {
		if key == "services" {
			continue
		}
		path := string(appendKey(nil, key))
		text := "only [services.NAME] tables belong in this file"
		fields, _ := doc.tree[key].(map[string]any)
		switch {
		case decode.Nearest(key, []string{"services"}) != "":
			text += `; did you mean "services"?`
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

// interner copies what the parser returns. Its strings are parts of the text, which would stay in memory as a whole
// for as long as any service has one of them.
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
