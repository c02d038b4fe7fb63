package tomlfile_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/tomlfile"
)

// unknownTables is a check like the daemon's, for a daemon that has no sections except [store] and
// [defaults].
func unknownTables(d store.Document) (problems []balancer.Problem) {
	for key := range d.Tree() {
		if key != "store" && key != "defaults" {
			problems = append(problems, balancer.Problem{Severity: balancer.SeverityError, Origin: d.Where(key), Field: key, Text: "unknown field"})
		}
	}
	return problems
}

func (w *world) checked() {
	w.Helper()
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml"), Check: unknownTables}, nil)
}

func names(all []balancer.Name) string { return strings.Trim(fmt.Sprint(all), "[]") }

// TestMistakeOutsideService makes each kind of mistake outside the service definitions. Services
// that the mistake may hide must stay unchanged, and changes to other services must take effect.
// When the mistake is fixed, services without a definition must be removed.
func TestMistakeOutsideService(t *testing.T) {
	const store = "store.path = \"d\"\n"
	main := store + service("a", 1) + service("b", 1)
	for name, c := range map[string]struct{ file, text, vanished, kept string }{
		"unknown table":         {"vipd.toml", store + "[service.a]\nvips = []\n" + service("b", 2), "a", "a"},
		"misspelled table":      {"vipd.toml", store + "[servicesa]\nvips = []\n" + service("b", 2), "a", "a"},
		"list of services":      {"vipd.toml", store + "[[services]]\nvips = []\n", "a b", "a b"},
		"services as a value":   {"vipd.toml", "services = 1\n" + store, "a b", "a b"},
		"bad name":              {"vipd.toml", store + service("A_1", 1) + service("b", 2), "a", "a"},
		"lost heading":          {"vipd.toml", store + service("b", 2) + "[services.b.health]\ntype = \"tcp\"\nvips = []\n", "a", "a b"},
		"lost heading in a map": {"vipd.toml", store + service("b", 2) + "[services.b.health.headers]\nvips = []\n", "a", "a b"},
		"folder is misspelled":  {"vipd.toml", "store.path = \"e\"\n" + service("b", 2), "a", "a d"},
		"table of the folder":   {"vipd.toml", "[stor]\npath = \"d\"\n" + service("b", 2), "a", "a"},
		"stranger in a folder":  {"d/d.toml", "[d]\nvips = []\n", "d", "d"},
		"wrong address":         {"d/d.toml", "[vips.\"10.96.O.1\"]\n", "d", "d"},
		"file of the folder":    {"d/new.toml", "[services.", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, map[string]string{"vipd.toml": main, "d/d.toml": service("d", 1)})
			w.checked()
			w.write(c.file, c.text)
			w.reload()
			s, _ := w.now()
			if !s.Services.Has("a") || !s.Services.Has("b") || !s.Services.Has("d") || names(s.Vanished) != c.vanished || names(s.Retained) != c.kept {
				t.Errorf("services = %v, Vanished = %v, Retained = %v; want all services, Vanished = %s, Retained = %s", sortedNames(s), s.Vanished, s.Retained, c.vanished, c.kept)
			}
			if reported := strings.Contains(describe(s), "this error might hide definitions ("+strings.ReplaceAll(c.vanished, " ", ", ")+"), "); reported != (c.vanished != "") {
				t.Errorf("problems = %v, want one that names the vanished services, if there are any", s.Problems)
			}
			if reported := strings.Contains(describe(s), "store.path: might be hidden by an error"); reported != (name == "table of the folder") {
				t.Errorf("problems = %v, want a problem that store.path might be hidden only if [store] is misspelled", s.Problems)
			}
			if strings.Contains(c.text, service("b", 2)) && !slices.Contains(s.Retained, "b") && s.Services.At("b").VIPs[0].As4()[3] != 2 {
				t.Error("service b still has its previous definition, want its new definition")
			}
			w.write("d/new.toml", "")
			w.write("d/d.toml", service("d", 1))
			w.write("vipd.toml", store+service("b", 3))
			w.reload()
			if s, _ := w.now(); describe(s) != "b=3 d=1" || len(s.Retained) > 0 {
				t.Errorf("after the fix: state = %s, Retained = %v, want b=3 d=1 and none", describe(s), s.Retained)
			}
		})
	}
}

// TestWrongValueHidesNothing writes an invalid value into a field of a service. This mistake can't
// hide definitions, so a service that disappears at the same time must be removed.
func TestWrongValueHidesNothing(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": service("a", 1) + service("b", 1)})
	w.checked()
	w.write("vipd.toml", service("a", 1)+"scheduler = \"none\"\n")
	w.reload()
	if s, _ := w.now(); !strings.HasPrefix(describe(s), "a=1 |") || names(s.Retained) != "a" || len(s.Vanished) > 0 {
		t.Errorf("state = %s, Retained = %v, Vanished = %v, want a=1, a and none", describe(s), s.Retained, s.Vanished)
	}
}

// TestPrune reloads with Prune while there are mistakes. The reload must remove exactly the
// vanished services.
func TestPrune(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "store.path = \"d\"\n" + service("a", 1) + service("b", 1), "d/c.toml": service("c", 1), "d/d.toml": service("d", 1)})
	w.checked()
	w.write("d/c.toml", "[services.")
	w.do(os.Remove(w.path("d/d.toml")))
	w.write("vipd.toml", "store.path = \"d\"\n[service.a]\n"+service("b", 2))
	w.reload()
	if s, _ := w.now(); !strings.HasPrefix(describe(s), "a=1 b=2 c=1 d=1 |") || names(s.Vanished) != "a d" || names(s.Retained) != "a c d" {
		t.Errorf("before pruning: state = %s, Vanished = %v, Retained = %v, want a and d in Vanished, and a, c and d in Retained", describe(s), s.Vanished, s.Retained)
	}
	for range 2 {
		w.reloadAs(tomlfile.Reload{Prune: true})
		if s, _ := w.now(); !strings.HasPrefix(describe(s), "b=2 c=1 |") || len(s.Vanished) > 0 || names(s.Retained) != "c" {
			t.Errorf("after pruning: state = %s, Vanished = %v, Retained = %v, want b=2 c=1, none, and only c", describe(s), s.Vanished, s.Retained)
		}
		w.reload()
	}
}

// TestVanishedDefaults makes mistakes that may hide [defaults], or a part of them. Services must
// keep the previous defaults until the mistake is fixed.
func TestVanishedDefaults(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "[defaults]\nscheduler = \"lc\"\nsnat = \"always\"\n" + service("a", 1)})
	w.checked()
	for i, text := range []string{
		"[default]\nscheduler = \"lc\"\n" + service("a", 1),
		"[defaults]\nscheduler = \"lc\"\n[snat]\n" + service("a", 1),
		"[services.defaults]\nscheduler = \"lc\"\n" + service("a", 1),
		"defaults = 1\n" + service("a", 1) + "weight = 1\n",
	} {
		w.write("vipd.toml", text)
		w.reload()
		s, _ := w.now()
		if a := s.Services.At("a"); a.Scheduler != balancer.LeastConn || a.SNAT != balancer.AlwaysSNAT {
			t.Errorf("%q: scheduler = %s, snat = %s, want the previous defaults", text, a.Scheduler, a.SNAT)
		}
		if reported := strings.Contains(describe(s), "defaults: might be hidden by an error"); reported != (i < 3) { // in the last text, the error is in defaults itself
			t.Errorf("%q: problems = %v, want one about hidden defaults, except for the last text", text, s.Problems)
		}
	}
	w.write("vipd.toml", "[defaults]\nscheduler = \"lc\"\n"+service("a", 1))
	w.reload()
	if s, _ := w.now(); s.Services.At("a").SNAT == balancer.AlwaysSNAT {
		t.Error("after the fix, snat is still always, although [defaults] no longer sets it")
	}
}

// TestVanishedOverRestart makes mistakes in the main file that may hide the services in all files,
// and restarts the source twice. The services must still be served.
func TestVanishedOverRestart(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "[store]\npath = \"d\"\n" + service("a", 1) + service("b", 1), "d/c.toml": service("c", 1), "d/d.toml": service("d", 1)})
	w.run()
	for _, text := range []string{"[stor]\npath = \"d\"\n[service.a]\n" + service("b", 2), "[stor"} {
		w.write("vipd.toml", text)
		w.write("d/c.toml", service("c", 2)) // changes to this file still take effect
		_ = os.Remove(w.path("d/d.toml"))
		for range 2 {
			if got, want := strings.Split(describe(w.run()), " |")[0], "a=1 b=2 c=2 d=1"; got != want {
				t.Errorf("%q: state after a restart = %s, want %s", text, got, want)
			}
		}
	}
}

// TestEmptiedBeforeTheStart empties the main file while no source runs. A source that starts
// afterwards must use the file's last content, unless its options allow an empty file.
func TestEmptiedBeforeTheStart(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "[store]\npath = \"d\"\n", "d/c.toml": service("c", 1)})
	w.run()
	w.write("vipd.toml", "")
	old := time.Now().Add(-time.Hour)
	w.do(os.Chtimes(w.path("vipd.toml"), old, old))
	if got := describe(w.run()); !strings.HasPrefix(got, "c=1 |") || !strings.Contains(got, "is empty") {
		t.Errorf("state after a restart = %s, want c=1 and a problem about the empty file", got)
	}
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml"), AllowEmpty: true}, nil)
	w.waitFor("nothing", "")
}
