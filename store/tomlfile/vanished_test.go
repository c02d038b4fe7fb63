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

// unknownTables is the check of a daemon that has no sections other than [store] and [defaults].
func unknownTables(d store.Document) (problems []balancer.Problem) {
	for key := range d.Tree() {
		if key != "store" && key != "defaults" {
			problems = append(problems, balancer.Problem{Severity: balancer.SeverityError, Origin: d.Where(key), Field: key, Text: "unknown field"})
		}
	}
	return problems
}

// checked follows vipd.toml, with unknownTables as Options.Check.
func (w *world) checked() {
	w.Helper()
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml"), Check: unknownTables}, nil)
}

// names formats names with a space between them.
func names(all []balancer.Name) string { return strings.Trim(fmt.Sprint(all), "[]") }

// TestMistakeOutsideService hides services with each kind of mistake. Hidden services must stay
// unchanged, and other services must change. After the mistake is fixed, services without a
// definition must be removed.
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
				t.Errorf("services = %v, vanished = %v, kept = %v; want vanished %s, kept %s", sortedNames(s), s.Vanished, s.Retained, c.vanished, c.kept)
			}
			if reported := strings.Contains(describe(s), "this error might hide definitions ("+strings.ReplaceAll(c.vanished, " ", ", ")+"), "); reported != (c.vanished != "") {
				t.Errorf("problems = %v, want a problem that names the vanished services", s.Problems)
			}
			if reported := strings.Contains(describe(s), "store.path: might be hidden by an error"); reported != (name == "table of the folder") {
				t.Errorf("problems = %v, want store.path named only if it may be hidden", s.Problems)
			}
			if strings.Contains(c.text, service("b", 2)) && !slices.Contains(s.Retained, "b") && s.Services.At("b").VIPs[0].As4()[3] != 2 {
				t.Error("b is unchanged, want its new valid definition")
			}
			w.write("d/new.toml", "")
			w.write("d/d.toml", service("d", 1))
			w.write("vipd.toml", store+service("b", 3))
			w.reload()
			if s, _ := w.now(); describe(s) != "b=3 d=1" || len(s.Retained) > 0 {
				t.Errorf("state after the fix = %s, retained = %v, want b=3, d=1 and none", describe(s), s.Retained)
			}
		})
	}
}

// TestWrongValueHidesNothing gives a service a wrong value. It must still be possible to remove
// another service.
func TestWrongValueHidesNothing(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": service("a", 1) + service("b", 1)})
	w.checked()
	w.write("vipd.toml", service("a", 1)+"scheduler = \"none\"\n")
	w.reload()
	if s, _ := w.now(); !strings.HasPrefix(describe(s), "a=1 |") || names(s.Retained) != "a" || len(s.Vanished) > 0 {
		t.Errorf("state = %s, retained = %v, vanished = %v, want a=1, a and none", describe(s), s.Retained, s.Vanished)
	}
}

// TestPrune prunes while a mistake remains. Exactly the vanished services must be removed.
func TestPrune(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "store.path = \"d\"\n" + service("a", 1) + service("b", 1), "d/c.toml": service("c", 1), "d/d.toml": service("d", 1)})
	w.checked()
	w.write("d/c.toml", "[services.")
	w.do(os.Remove(w.path("d/d.toml")))
	w.write("vipd.toml", "store.path = \"d\"\n[service.a]\n"+service("b", 2))
	w.reload()
	if s, _ := w.now(); !strings.HasPrefix(describe(s), "a=1 b=2 c=1 d=1 |") || names(s.Vanished) != "a d" || names(s.Retained) != "a c d" {
		t.Errorf("state = %s, vanished = %v, retained = %v, want a and d vanished", describe(s), s.Vanished, s.Retained)
	}
	for range 2 {
		w.reloadAs(tomlfile.Reload{Prune: true})
		if s, _ := w.now(); !strings.HasPrefix(describe(s), "b=2 c=1 |") || len(s.Vanished) > 0 || names(s.Retained) != "c" {
			t.Errorf("state after pruning = %s, vanished = %v, retained = %v, want only c retained", describe(s), s.Vanished, s.Retained)
		}
		w.reload()
	}
}

// TestVanishedDefaults hides [defaults], or a part of them, with a mistake. Services must keep the
// defaults until the mistake is fixed.
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
			t.Errorf("%q: scheduler = %s, snat = %s, want the former defaults", text, a.Scheduler, a.SNAT)
		}
		if reported := strings.Contains(describe(s), "defaults: might be hidden by an error"); reported != (i < 3) { // the last defaults have an error themselves
			t.Errorf("%q: problems = %v, want the hidden defaults named only in the first three", text, s.Problems)
		}
	}
	w.write("vipd.toml", "[defaults]\nscheduler = \"lc\"\n"+service("a", 1))
	w.reload()
	if s, _ := w.now(); s.Services.At("a").SNAT == balancer.AlwaysSNAT {
		t.Error("snat after the fix = always, want the new default")
	}
}

// TestVanishedOverRestart hides the services of all files with a mistake in the main file, and
// restarts twice. The services must still be served.
func TestVanishedOverRestart(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "[store]\npath = \"d\"\n" + service("a", 1) + service("b", 1), "d/c.toml": service("c", 1), "d/d.toml": service("d", 1)})
	w.run()
	for _, text := range []string{"[stor]\npath = \"d\"\n[service.a]\n" + service("b", 2), "[stor"} {
		w.write("vipd.toml", text)
		w.write("d/c.toml", service("c", 2)) // still followed
		_ = os.Remove(w.path("d/d.toml"))
		for range 2 {
			if got, want := strings.Split(describe(w.run()), " |")[0], "a=1 b=2 c=2 d=1"; got != want {
				t.Errorf("%q: state after a restart = %s, want %s", text, got, want)
			}
		}
	}
}

// TestEmptiedBeforeTheStart empties the main file while no process follows it. Its last content
// must be served, unless an empty file is allowed.
func TestEmptiedBeforeTheStart(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "[store]\npath = \"d\"\n", "d/c.toml": service("c", 1)})
	w.run()
	w.write("vipd.toml", "")
	old := time.Now().Add(-time.Hour)
	w.do(os.Chtimes(w.path("vipd.toml"), old, old))
	if got := describe(w.run()); !strings.HasPrefix(got, "c=1 |") || !strings.Contains(got, "is empty") {
		t.Errorf("state after a restart = %s, want c=1 and a problem of the empty file", got)
	}
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml"), AllowEmpty: true}, nil)
	w.waitFor("nothing", "")
}
