package etcd_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
	"vipd/test/etcdkit"
)

// TestMatches compares a stored definition with other definitions. Only differences that could
// matter to some host may count as changes.
func TestMatches(t *testing.T) {
	const stored = `{"vips": ["10.96.0.10"], "ports": [{"port": 80, "shape": [1.0]}], "color": "red"}`
	for name, test := range map[string]struct {
		text string
		same bool
	}{
		"the same":                       {stored, true},
		"in another order":               {`{"color": "red", "ports": [{"shape": [1.0], "port": 80}], "vips": ["10.96.0.10"]}`, true},
		"an unknown field is gone":       {`{"vips": ["10.96.0.10"], "ports": [{"port": 80, "shape": [1.0]}]}`, false},
		"an unknown field deep inside":   {`{"vips": ["10.96.0.10"], "ports": [{"port": 80, "shape": [2.0]}], "color": "red"}`, false},
		"another port":                   {`{"vips": ["10.96.0.10"], "ports": [{"port": 81, "shape": [1.0]}], "color": "red"}`, false},
		"no service":                     {`{"vips": [], "ports": [{"port": 80, "shape": [1.0]}], "color": "red"}`, false},
		"what defaults no longer decide": {`{"vips": ["10.96.0.10"], "ports": [{"port": 80, "shape": [1.0]}], "color": "red", "scheduler": "wrr"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &definitions.Stored{Name: "web", Fields: object(t, stored)}
			s.Service, s.Problems = balancer.DecodeService("web", s.Fields, nil, nil, balancer.SeverityWarning)
			if got := s.Matches(object(t, test.text)); got != test.same {
				t.Errorf("Matches = %t, want %t", got, test.same)
			}
		})
	}
	plain := &definitions.Stored{Name: "web", Fields: object(t, `{"vips": ["10.96.0.10"], "ports": [{"port": 80}]}`)}
	plain.Service, _ = balancer.DecodeService("web", plain.Fields, nil, nil, "")
	if !plain.Matches(object(t, `{"vips": ["10.96.0.10"], "ports": [{"port": 80, "protocol": "tcp", "target_port": 80}], "endpoints": []}`)) {
		t.Error("Matches = false for an equal definition in another form, want true")
	}
	for _, text := range []string{`{"vips": ["10.96.0.10"], "ports": [{"port": 80}], "scheduler": "wrr"}`, `{"vips": ["10.96.0.10"], "ports": [{"port": 80}], "health": null}`} {
		if plain.Matches(object(t, text)) {
			t.Errorf("Matches(%s) = true, want false, because the definitions' meaning depends on a host's defaults", text)
		}
	}
}

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	fields, err := schema.ParseObject([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	w := newWriter(t, p.config)
	if d, err := w.Definitions(t.Context()); err != nil || len(d.Services) != 0 {
		t.Fatalf("definitions of an empty etcd = %v, %v, want none", d, err)
	}
	change := definitions.Change{Name: "web", Fields: fields(80), By: "alice"}
	change.Fields["color"] = "red"
	if _, err := w.Apply(t.Context(), change); err == nil || !strings.Contains(err.Error(), "color: unknown field") {
		t.Fatalf("Apply with an unknown field = %v, want an error that names color", err)
	}
	change.AllowUnknown = true
	web := apply(t, w, change)
	broken := p.put("/services/broken", "{")
	p.put("/services/No_Name", "{}")
	p.put("/vips/10.97.0.1", "web")
	p.put("/vips/10.97.0.01", "web")
	last := p.put("/endpoints/web/a", `{"address": "10.0.0.1"}`)
	d, err := w.Definitions(t.Context())
	all := d.Services
	if err != nil || len(all) != 2 || d.Revision != last {
		t.Fatalf("definitions = %d at revision %d, %v, want 2 at revision %d", len(all), d.Revision, err, last)
	}
	if want := map[netip.Addr]balancer.Name{netip.MustParseAddr("10.97.0.1"): "web"}; !reflect.DeepEqual(d.Held, want) {
		t.Errorf("held addresses = %v, want %v", d.Held, want)
	}
	if s := all[0]; s.Name != "broken" || s.Service != nil || s.Fields != nil || len(s.Problems) != 1 || s.Revision != broken {
		t.Errorf("stored definition of broken = %+v, want one problem and no service", s)
	}
	if s := all[1]; s.Name != "web" || s.Service == nil || s.Fields["color"] != "red" || s.Revision != web.Revision {
		t.Errorf("stored definition of web = %+v, want the color red", s)
	}
	if names, err := w.Names(t.Context()); err != nil || !reflect.DeepEqual(names, []balancer.Name{"broken", "web"}) {
		t.Errorf("names = %v, %v, want broken and web", names, err)
	}
}
