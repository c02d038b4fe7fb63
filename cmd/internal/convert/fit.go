package convert

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
)

// fitAll removes what vipd would refuse, with a note for each.
func (d *draft) fitAll() {
	claims := map[balancer.Key]*service{}
	var kept []*service
	for _, s := range d.services {
		decoded := d.fit(s)
		if decoded == nil {
			continue
		}
		if first, key := claimed(claims, decoded); first != nil {
			d.note(s.line, "left out: %s is already served by service %s (line %d)", key, first.name, first.line)
			continue
		}
		for key := range decoded.Claims() {
			claims[key] = s
		}
		kept = append(kept, s)
	}
	d.services = kept
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

// fit removes from s what the decoder of services refuses. It returns the decoded service; nil if nothing is left that can be
// served.
func (d *draft) fit(s *service) *balancer.Service {
	s.settle()
	for {
		decoded, problems := balancer.DecodeService(balancer.Name(s.name), s.fields(), nil, nil, balancer.SeverityError)
		removed := false
		// From the last to the first, so that indexes of elements stay right.
		slices.SortStableFunc(problems, func(a, b balancer.Problem) int { return indexOf(b.Field) - indexOf(a.Field) })
		seen := map[string]bool{}
		for _, p := range problems {
			place := placeOf(p.Field)
			if !seen[place] && d.remove(s, p) {
				seen[place], removed = true, true
			}
		}
		if removed {
			continue
		}
		if decoded == nil {
			d.note(s.line, "left out: %s", problems[0].Text)
		}
		return decoded
	}
}

// placeOf is the element or field of a service that a path leads to or through.
func placeOf(path string) string {
	if i := strings.IndexByte(path, ']'); i >= 0 {
		return path[:i+1]
	}
	return path
}

// indexOf is the index in a path such as endpoints[2].weight; -1 without one.
func indexOf(path string) int {
	_, rest, found := strings.Cut(path, "[")
	number, _, _ := strings.Cut(rest, "]")
	n, err := strconv.Atoi(number)
	if !found || err != nil {
		return -1
	}
	return n
}

// remove removes what a problem is about, and reports whether there was something to remove. Warnings remove settings
// alone: an endpoint with a warning is still an endpoint.
func (d *draft) remove(s *service, p balancer.Problem) bool {
	field, _, _ := strings.Cut(p.Field, ".")
	list, _, isElement := strings.Cut(field, "[")
	switch {
	case isElement:
		return p.Severity == balancer.SeverityError && d.removeElement(s, list, indexOf(field), p.Text)
	case field == "health":
		return len(s.health) > 0 && d.removeCheck(s, strings.TrimPrefix(p.Field, "health."), p)
	}
	for i, one := range s.settings {
		if one.name == field {
			s.settings = slices.Delete(s.settings, i, i+1)
			d.note(one.at(s), "not set: %s: %s", p.Field, p.Text)
			return true
		}
	}
	return false
}

func (d *draft) removeElement(s *service, list string, i int, text string) bool {
	var line int
	switch {
	case list == "vips" && i < len(s.vips):
		line = s.vips[i].line
		s.vips = slices.Delete(s.vips, i, i+1)
	case list == "ports" && i < len(s.ports):
		line = s.ports[i].line
		s.ports = slices.Delete(s.ports, i, i+1)
	case list == "endpoints" && i < len(s.targets):
		line = s.targets[i].line
		s.targets = slices.Delete(s.targets, i, i+1)
	default:
		return false
	}
	d.note(line, "left out: %s", text)
	return true
}

// removeCheck removes a field of the health table; all of it where the problem is about what is missing there.
func (d *draft) removeCheck(s *service, path string, p balancer.Problem) bool {
	field, _, _ := strings.Cut(path, ".")
	for i, one := range s.health {
		if one.name == field && field != "type" {
			s.health = slices.Delete(s.health, i, i+1)
			d.note(one.at(s), "not set: %s: %s", p.Field, p.Text)
			return true
		}
	}
	d.note(s.health[0].at(s), "not checked: %s: %s", p.Field, p.Text)
	s.health = nil
	return true
}

// at is the line of the setting; for a default, that of its service.
func (one setting) at(s *service) int {
	if one.line > 0 {
		return one.line
	}
	return s.line
}

// settle names the ports of a service where it has several, and puts the endpoints' port where it is written shortest.
func (s *service) settle() {
	if len(s.ports) > 1 {
		for _, p := range s.ports {
			fields := p.value.(map[string]any)
			fields["name"] = "p" + strconv.FormatInt(fields["port"].(int64), 10)
			if fields["protocol"] != nil {
				fields["name"] = fields["protocol"].(string) + "-" + strconv.FormatInt(fields["port"].(int64), 10)
			}
		}
	}
	common := len(s.targets) > 0
	for _, t := range s.targets {
		common = common && t.port == s.targets[0].port && t.port != 0
	}
	if common {
		for _, p := range s.ports {
			if fields := p.value.(map[string]any); fields["port"] != int64(s.targets[0].port) {
				fields["target_port"] = int64(s.targets[0].port)
			}
		}
		return
	}
	for _, t := range s.targets {
		if t.port != 0 {
			t.fields["port"] = int64(t.port)
		}
	}
}

// fields are the service as the decoder takes it.
func (s *service) fields() map[string]any {
	fields := map[string]any{"vips": values(s.vips), "ports": values(s.ports), "endpoints": values(s.endpoints())}
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

// endpoints are the targets as elements of a list.
func (s *service) endpoints() []entry {
	out := make([]entry, len(s.targets))
	for i, t := range s.targets {
		out[i] = entry{t.fields, t.line}
	}
	return out
}

func values(entries []entry) []any {
	out := make([]any, len(entries))
	for i, e := range entries {
		out[i] = e.value
	}
	return out
}
