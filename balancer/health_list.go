package balancer

import (
	"cmp"
	"slices"
)

// Checks returns the service's health checks, in the order of the definition.
func (s *Service) Checks() []*Health {
	if s.Health == nil {
		return nil
	}
	return append([]*Health{s.Health}, s.MoreHealth...)
}

// CheckField returns the path of a field in check i.
func (s *Service) CheckField(i int, field string) string {
	if len(s.MoreHealth) == 0 {
		return "health." + field
	}
	return element("health", i, field)
}

// Questions returns the check that queries the endpoints' agents. It returns nil if the service has
// no agents.
func (s *Service) Questions() []*Health {
	if s.Health == nil || s.Health.Agent == nil {
		return nil
	}
	return []*Health{s.Health.Agent.Question()}
}

// HasAgent reports whether s has agents. A nil service has no agents.
func (s *Service) HasAgent() bool { return s != nil && len(s.Questions()) > 0 }

// RunsProgram reports whether a check of s runs a program.
func (s *Service) RunsProgram() bool { return s.indexProgram() >= 0 }

// indexProgram returns the index of a check that runs a program, or -1.
func (s *Service) indexProgram() int {
	return slices.IndexFunc(s.Checks(), func(h *Health) bool { return h.Type == ExecHealth })
}

// healthReader validates one check of a service. Paths are relative to the check's table.
type healthReader struct {
	*tableReader
	path  string
	table map[string]any
}

// healthReader returns the reader for check i. If the service has no checks of its own, its checks
// come from [defaults].
func (r *tableReader) healthReader(i int) *healthReader {
	tables, isList := r.healthTables()
	h := &healthReader{tableReader: r, path: "health"}
	if isList {
		h.path = element("health", i, "")
	}
	if i < len(tables) {
		h.table = tables[i]
	}
	return h
}

// healthTables returns the tables of the service's checks, and whether they are written as a list.
func (r *tableReader) healthTables() (tables []map[string]any, isList bool) {
	health := r.own["health"]
	if health == nil {
		health = r.defaulted["health"]
	}
	switch health := health.(type) {
	case map[string]any:
		return []map[string]any{health}, false
	case []map[string]any:
		return health, true
	case []any:
		for _, entry := range health {
			table, _ := entry.(map[string]any)
			tables = append(tables, table)
		}
		return tables, true
	}
	return nil, false
}

// sets reports whether the check's own table sets the field.
func (r *healthReader) sets(field string) bool { return r.table[field] != nil }

func (r *healthReader) errorf(path, format string, args ...any) {
	r.tableReader.errorf(r.path+"."+path, format, args...)
}

func (r *healthReader) warnf(path, format string, args ...any) {
	r.tableReader.warnf(r.path+"."+path, format, args...)
}

func (r *healthReader) isBroken(path string) bool { return r.tableReader.isBroken(r.path + "." + path) }

// sharedField is a field of a health check that applies to the whole service.
type sharedField struct {
	name string
	of   func(h *Health) any
	copy func(to, from *Health)
}

func sharedFields() []sharedField {
	return []sharedField{
		{"need", func(h *Health) any { return h.Need }, func(to, from *Health) { to.Need = from.Need }},
		{"panic_threshold", func(h *Health) any { return h.PanicThreshold }, func(to, from *Health) { to.PanicThreshold = from.PanicThreshold }},
		{"on_failure", func(h *Health) any { return h.OnFailure }, func(to, from *Health) { to.OnFailure = from.OnFailure }},
		{"agent", func(h *Health) any { return *cmp.Or(h.Agent, &Agent{}) }, func(to, from *Health) { to.Agent = from.Agent }},
		{"from", func(h *Health) any { return h.From }, func(to, from *Health) { to.From = from.From }},
	}
}

// shareHealth copies each shared field from the first check that sets it to all checks. It reports
// an error if another check sets the field to another value.
func (r *tableReader) shareHealth(checks healthTables) {
	if len(checks) == 1 && checks[0].Need == NeedAnyHealth {
		r.healthReader(0).warnf("need", "has no effect: the service has a single check")
	}
	for _, f := range sharedFields() {
		first := -1
		for i := range checks {
			reader := r.healthReader(i)
			switch {
			case !reader.sets(f.name) || reader.isBroken(f.name):
			case first < 0:
				first = i
			case f.of(&checks[i]) != f.of(&checks[first]):
				reader.errorf(f.name, "%v differs from %v in health[%d], but the setting applies to the whole service: write it in only one check", f.of(&checks[i]), f.of(&checks[first]), first)
			}
		}
		for i := range checks {
			if first >= 0 {
				f.copy(&checks[i], &checks[first])
			}
		}
	}
}
