package main

import (
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/store/etcd/definitions"
)

// FuzzGiven reads arbitrary files. An invalid service must have a problem, and an unknown field
// must be a warning.
func FuzzGiven(f *testing.F) {
	for _, text := range []string{
		"", "{", "{}", `{"services": 1}`, `{"services": {"a": []}, "x": 1}`, `{"a": {"vips": ["auto"], "ports": [{"port": 1}], "x": null}}`,
		"[services.a]\nvips = [\"10.0.0.1\"]\nports = [{ port = 80 }]\nx = 1979-05-27\n", "services = 1", "[[services.a]]", "[defaults]\n[nonsense]", "\ufeff{}",
		`{"a": {"vips": ["10.0.0.1"], "vips": []}}`, "[services.\"A b\"]\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		g := &given{services: map[balancer.Name]*written{}}
		g.add("x", text)
		p := definitions.NewPlan(g.changes())
		g.problems = append(g.problems, p.Problems...)
		wrong := slices.ContainsFunc(g.problems, isError)
		for _, s := range p.Steps {
			if s.Service == nil && !wrong {
				t.Errorf("invalid service %s: no problems, want at least one", s.Name)
			}
		}
		for _, p := range g.problems {
			if p.Unknown && (p.Severity != balancer.SeverityWarning || p.Field == "") {
				t.Errorf("problem = %+v, want a warning for an unknown field", p)
			}
		}
		if len(g.services) == 0 && len(g.bare) == 0 && !wrong {
			t.Error("empty input: no problems, want at least one")
		}
	})
}
