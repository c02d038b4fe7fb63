package convert

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
)

// fitter removes the fields that vipd would refuse from a draft.
type fitter struct{ *draft }

// fitAll removes fields that vipd would refuse, with a note for each, and disables services that it
// could not serve.
func (d *draft) fitAll() {
	f := &fitter{d}
	claims := map[balancer.Key]*service{}
	for _, s := range d.services {
		decoded := f.fit(s)
		if len(s.endpoints) == 0 && len(s.reasons) == 0 {
			d.disable(s, s.line, "it has no endpoint, so all its clients would be refused; add endpoints, or let servers join with \"vipctl register\"")
		}
		if len(s.reasons) > 0 {
			continue
		}
		if first, key := claimed(claims, decoded); first != nil {
			d.disable(s, s.line, "%s is already served by service %s (line %d)", key, first.name, first.line)
			continue
		}
		for key := range decoded.Claims() {
			claims[key] = s
		}
	}
}

// claimed returns a service that already claims an address and port of s, with the key of that
// address and port. It returns nil if there is none.
func claimed(claims map[balancer.Key]*service, s *balancer.Service) (*service, balancer.Key) {
	keys := slices.SortedFunc(maps.Keys(s.Claims()), func(a, b balancer.Key) int { return cmp.Compare(a.String(), b.String()) })
	for _, key := range keys {
		if first := claims[key]; first != nil {
			return first, key
		}
	}
	return nil, balancer.Key{}
}

// fit removes from s the fields that the service decoder refuses, and returns the decoded service.
// If the remaining service can't be served, it disables the service and returns nil.
func (f *fitter) fit(s *service) *balancer.Service {
	s.settle()
	f.fitFamilies(s)
	f.fitLoops(s)
	for {
		decoded, problems := balancer.DecodeService(balancer.Name(s.name), s.fields(), nil, nil, balancer.SeverityError)
		if slices.ContainsFunc(problems, func(p balancer.Problem) bool { return f.remove(s, p, problems) }) {
			continue
		}
		if decoded == nil && len(s.reasons) == 0 {
			f.disable(s, s.line, "%s: %s", problems[0].Field, problems[0].Text)
		}
		return decoded
	}
}

// isPart and isWhole distinguish problems with an element's field from problems with the whole
// element, such as a duplicate. Elements with a bad field are removed first, because a removed
// element can't be a duplicate.
func isPart(field string) bool  { return strings.Contains(field, "].") }
func isWhole(field string) bool { return strings.HasSuffix(field, "]") }

// removeElements removes the elements that have an error in a field for which kind returns true,
// and reports whether it removed any. Elements with only warnings stay.
func (f *fitter) removeElements(s *service, problems []balancer.Problem, kind func(field string) bool) bool {
	refused := map[string]map[int]bool{}
	for _, p := range problems {
		list, rest, isElement := strings.Cut(p.Field, "[")
		index, _, _ := strings.Cut(rest, "]")
		i, err := strconv.Atoi(index)
		entries := s.list(list)
		if p.Severity != balancer.SeverityError || !isElement || err != nil || !kind(p.Field) || entries == nil || i >= len(*entries) {
			continue
		}
		if refused[list] == nil {
			refused[list] = map[int]bool{}
		}
		if !refused[list][i] {
			refused[list][i] = true
			f.note((*entries)[i].line, "left out: %s", p.Text)
		}
	}
	for list, indexes := range refused {
		entries, i := s.list(list), -1
		*entries = slices.DeleteFunc(*entries, func(listElement) bool {
			i++
			return indexes[i]
		})
	}
	return len(refused) > 0
}

// remove removes the setting that has the problem, and reports whether it removed anything. A
// warning removes a setting but never an element, because an endpoint with a warning can still
// serve. An error in an element removes all elements with errors. If the health table lacks a
// required field, remove removes the whole table.
func (f *fitter) remove(s *service, p balancer.Problem, problems []balancer.Problem) bool {
	field, inner, _ := strings.Cut(p.Field, ".")
	settings := &s.settings
	if strings.Contains(field, "[") {
		return p.Severity == balancer.SeverityError && (f.removeElements(s, problems, isPart) || f.removeElements(s, problems, isWhole))
	}
	if field == "health" {
		settings = &s.health
		field, _, _ = strings.Cut(inner, ".")
	}
	if field == "source_ranges" || field == "proxy_protocol" || field == "forward" {
		// Without this field, the service would accept other clients, or reach its servers in a way
		// that they don't expect.
		return false
	}
	if one := find(*settings, field); one != nil && field != "type" {
		f.note(cmp.Or(one.line, s.line), "not set: %s: %s", p.Field, p.Text)
		*settings = slices.DeleteFunc(*settings, func(s setting) bool { return s.name == field })
		return true
	}
	if settings == &s.health && len(s.health) > 0 {
		f.note(cmp.Or(s.health[0].line, s.line), "not checked: %s: %s", p.Field, p.Text)
		s.health = nil
		return true
	}
	return false
}

// list returns the list with a name, or nil if services have no list with that name.
func (s *service) list(name string) *[]listElement {
	return map[string]*[]listElement{"vips": &s.vips, "ports": &s.ports, "endpoints": &s.endpoints}[name]
}

// settle names a service's ports if it has several, and writes the endpoints' ports in the shortest
// form.
func (s *service) settle() {
	if len(s.ports) > 1 {
		for _, p := range s.ports {
			fields := p.fields()
			if fields["name"] != nil {
				continue
			}
			fields["name"] = "p" + strconv.FormatInt(fields["port"].(int64), 10)
			if fields["protocol"] != nil {
				fields["name"] = fields["protocol"].(string) + "-" + strconv.FormatInt(fields["port"].(int64), 10)
			}
		}
	}
	common := len(s.endpoints) > 0
	for _, e := range s.endpoints {
		common = common && e.port == s.endpoints[0].port && e.port != 0
	}
	if common {
		for _, p := range s.ports {
			if fields := p.fields(); fields["port"] != int64(s.endpoints[0].port) {
				fields["target_port"] = int64(s.endpoints[0].port)
			}
		}
		return
	}
	for _, e := range s.endpoints {
		if e.port != 0 {
			e.fields()["port"] = int64(e.port)
		}
	}
}

// fields returns the service as the table that the decoder reads.
func (s *service) fields() map[string]any {
	fields := map[string]any{"vips": values(s.vips), "ports": values(s.ports), "endpoints": values(s.endpoints)}
	for _, one := range s.settings {
		fields[one.name] = one.value
	}
	if len(s.health) > 0 {
		table := map[string]any{}
		for _, one := range s.health {
			table[one.name] = one.value
		}
		fields["health"] = table
	}
	return fields
}

func values(entries []listElement) []any {
	out := make([]any, len(entries))
	for i, e := range entries {
		out[i] = e.value
	}
	return out
}
