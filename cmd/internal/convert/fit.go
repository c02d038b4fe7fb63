package convert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
)

// fitAll removes fields that vipd would refuse, with a note for each, and disables services that it could not serve.
func (d *draft) fitAll() {
	claims := map[balancer.Key]*service{}
	for _, s := range d.services {
		decoded := d.fit(s)
		if len(s.endpoints) == 0 {
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

// claimed returns the service that has one of the addresses and ports already.
func claimed(claims map[balancer.Key]*service, s *balancer.Service) (*service, balancer.Key) {
	keys := slices.SortedFunc(maps.Keys(s.Claims()), func(a, b balancer.Key) int { return cmp.Compare(a.String(), b.String()) })
	for _, key := range keys {
		if first := claims[key]; first != nil {
			return first, key
		}
	}
	return nil, balancer.Key{}
}

// fit removes from s the fields that the decoder of services refuses, one after the other. It returns the decoded service. If the
// rest can't be served, it disables the service and returns nil.
func (d *draft) fit(s *service) *balancer.Service {
	s.settle()
	for {
		decoded, problems := balancer.DecodeService(balancer.Name(s.name), s.fields(), nil, nil, balancer.SeverityError)
		if slices.ContainsFunc(problems, func(p balancer.Problem) bool { return d.remove(s, p) }) {
			continue
		}
		if decoded == nil && len(s.reasons) == 0 {
			d.disable(s, s.line, "%s: %s", problems[0].Field, problems[0].Text)
		}
		return decoded
	}
}

// remove removes what a problem is about, and reports whether there was something to remove. Warnings remove settings
// alone: an endpoint with a warning is still an endpoint. A problem with what is missing in the health table removes all of it.
func (d *draft) remove(s *service, p balancer.Problem) bool {
	field, inner, _ := strings.Cut(p.Field, ".")
	settings := &s.settings
	if list, _, isElement := strings.Cut(field, "["); isElement {
		i := -1
		_, _ = fmt.Sscanf(field, list+"[%d]", &i) // -1 where there is no index
		return p.Severity == balancer.SeverityError && d.removeElement(s.list(list), i, p.Text)
	}
	if field == "health" {
		settings = &s.health
		field, _, _ = strings.Cut(inner, ".")
	}
	if one := find(*settings, field); one != nil && field != "type" {
		d.note(cmp.Or(one.line, s.line), "not set: %s: %s", p.Field, p.Text)
		*settings = slices.DeleteFunc(*settings, func(s setting) bool { return s.name == field })
		return true
	}
	if settings == &s.health && len(s.health) > 0 {
		d.note(cmp.Or(s.health[0].line, s.line), "not checked: %s: %s", p.Field, p.Text)
		s.health = nil
		return true
	}
	return false
}

// list is the list of a name; nil means there is none.
func (s *service) list(name string) *[]entry {
	return map[string]*[]entry{"vips": &s.vips, "ports": &s.ports, "endpoints": &s.endpoints}[name]
}

func (d *draft) removeElement(list *[]entry, i int, text string) bool {
	if list == nil || i < 0 || i >= len(*list) {
		return false
	}
	d.note((*list)[i].line, "left out: %s", text)
	*list = slices.Delete(*list, i, i+1)
	return true
}

// settle names the ports of a service where it has several, and puts the endpoints' port where it is written shortest.
func (s *service) settle() {
	if len(s.ports) > 1 {
		for _, p := range s.ports {
			fields := p.fields()
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

// fields are the service as the decoder takes it.
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

func values(entries []entry) []any {
	out := make([]any, len(entries))
	for i, e := range entries {
		out[i] = e.value
	}
	return out
}
