package tomlfile_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store/tomlfile"
)

func TestMainAndFolderTogether(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "mode = \"auto\"\nstore.path = \"services.d\"\n[unknown]\nx = 1\n" + service("web", 1),
		"services.d/b.toml": service("b1", 2) + service("b2", 3),
		"services.d/a.toml": service("a", 4),
	})
	w.follow()
	s := w.waitFor("all services", "a=4 b1=2 b2=3 web=1")
	for name, want := range map[balancer.Name]balancer.Origin{
		"web": {File: w.path("vipd.toml"), Line: 5}, "a": {File: w.path("services.d/a.toml"), Line: 1},
		"b2": {File: w.path("services.d/b.toml"), Line: 4},
	} {
		if got := s.Services.At(name).Origin.At(""); got != want {
			t.Errorf("Origin of service %s = %+v, want %+v", name, got, want)
		}
	}
	w.do(os.Remove(w.path("services.d/b.toml")))
	w.waitFor("the removal of b.toml", "a=4 web=1")
	w.write("services.d/c.toml", service("b1", 5))
	w.waitFor("c.toml", "a=4 b1=5 web=1")
	w.write("vipd.toml", "store.path = \"services.d/c.toml\"\n")
	w.waitFor("the one file c.toml", "b1=5")
	w.write("services.d/c.toml", service("b1", 6))
	w.waitFor("a change of the one file", "b1=6")
	w.write("vipd.toml", service("web", 7))
	w.waitFor("services of the main file alone", "web=7")
}

func TestEditorsDroppingsAreNotRead(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "store.path = \".\"\n" + service("web", 1)})
	w.write("dir.toml/x.toml", service("x", 2))
	w.follow()
	w.waitFor("the first state", "web=1")
	for i, name := range []string{".#x.toml", "x.toml~", "4913", ".x.toml", ".x.toml.swp", "x.toml.tmp", "#x.toml#", "dir.toml/y.toml"} {
		w.write(name, service(fmt.Sprint("x", i), 2))
	}
	w.wantUnchanged("droppings", 200*time.Millisecond)
	if problems := w.reload(); len(problems) > 0 {
		t.Errorf("reload with editors' leftover files: problems = %v, want none", problems)
	}
	w.write("x.toml", service("x", 3))
	w.waitFor("a real file", "web=1 x=3")
}

func TestABrokenFileKeepsItsLastGoodState(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "store.path = \"services.d\"\n" + service("web", 1),
		"services.d/a.toml": service("a", 2), "services.d/b.toml": service("b", 3),
	})
	w.follow()
	before := w.waitFor("the first state", "a=2 b=3 web=1")
	w.write("services.d/a.toml", service("a", 4)+"[services.a2\n")
	w.write("services.d/b.toml", service("b", 5))
	after := w.waitFor("the problem of a, and b", "a=2 b=5 web=1 | DIR/services.d/a.toml:4: not valid TOML: expected '.' or ']' to end table name, but got '\\n' instead")
	if before.Services.At("a") != after.Services.At("a") {
		t.Error("service a got a new pointer while its file is broken")
	}
	w.write("vipd.toml", "store.path = \"elsewhere\n")
	w.write("services.d/b.toml", service("b", 6))
	w.until("the problem of the main file, and b", func(s snapshot) bool {
		return strings.HasPrefix(describe(s), w.in("a=2 b=6 web=1 | DIR/vipd.toml:1: not valid TOML: "))
	})
	w.write("vipd.toml", "store.path = \"services.d\"\n")
	w.write("services.d/a.toml", service("a", 2)+service("a2", 7))
	mended := w.waitFor("all mended", "a=2 a2=7 b=6")
	if before.Services.At("a") != mended.Services.At("a") {
		t.Error("service a got a new pointer after its file was fixed")
	}
}

func TestABadServiceIsAlone(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": service("a", 1) + service("b", 2)})
	w.follow()
	before := w.waitFor("the first state", "a=1 b=2")
	w.write("vipd.toml", service("a", 3)+"weight = 1\n"+service("b", 4)+"\n[[services.c]]\n")
	after := w.until("b, and the problem of a and c", func(s snapshot) bool { return s.Services.At("b") != before.Services.At("b") })
	if after.Services.At("a") != before.Services.At("a") || len(after.Problems) != 2 {
		t.Fatalf("state = %s, want the previous definition of service a, and 2 problems", describe(after))
	}
	for i, want := range []balancer.Problem{
		{Origin: balancer.Origin{File: w.path("vipd.toml"), Line: 4}, Service: "a", Field: "weight"},
		{Origin: balancer.Origin{File: w.path("vipd.toml"), Line: 9}, Service: "c"},
	} {
		got := after.Problems[i]
		if got.Origin != want.Origin || got.Service != want.Service || got.Field != want.Field || got.Severity != balancer.SeverityError {
			t.Errorf("problem = %+v, want an error with the origin, service and field of %+v", got, want)
		}
	}
}

func TestMovedLinesAreANewOrigin(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": service("a", 1) + service("b", 2)})
	w.follow()
	before := w.waitFor("the first state", "a=1 b=2")
	w.write("vipd.toml", service("a", 1)+"\n"+service("b", 2))
	after := w.until("the moved line", func(s snapshot) bool { return s.Services.At("b").Origin.Line == 5 })
	if before.Services.At("a") != after.Services.At("a") {
		t.Error("service a got a new pointer although its lines did not move")
	}
	w.write("vipd.toml", service("a", 1)+"\n"+service("b", 2)+"# a comment\n")
	w.wantUnchanged("a comment at the end", 200*time.Millisecond)
}

func TestDefaults(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "store.path = \"services.d\"\ndefaults.scheduler = \"lc\"\n" + service("web", 1),
		"services.d/a.toml": service("a", 2), "services.d/b.toml": service("b", 3) + "scheduler = \"rr\"\n",
	})
	w.follow()
	schedulers := func(want string) func(snapshot) bool {
		return func(s snapshot) bool {
			var got []string
			for _, service := range s.Services.All() {
				got = append(got, string(service.Scheduler))
			}
			return strings.Join(got, " ") == want
		}
	}
	w.until("the defaults", schedulers("lc rr lc"))
	main := "store.path = \"services.d\"\n\n[defaults]\nscheduler = %q\n" + service("web", 1)
	w.write("vipd.toml", fmt.Sprintf(main, "mh"))
	before := w.until("other defaults in all files", schedulers("mh rr mh"))
	w.write("vipd.toml", fmt.Sprintf(main, "fastest"))
	after := w.until("a problem", func(s snapshot) bool { return len(s.Problems) > 0 })
	if p := after.Problems; len(p) != 1 || p[0].Field != "defaults.scheduler" || p[0].Origin.Line != 4 || p[0].Service != "" {
		t.Errorf("problems = %v, want one about defaults.scheduler at line 4", p)
	}
	if !schedulers("mh rr mh")(after) || after.Services.At("a") != before.Services.At("a") {
		t.Errorf("service a after an error in the defaults = %+v, want it unchanged", after.Services.At("a"))
	}
	w.write("vipd.toml", "store.path = \"services.d\"\n"+service("web", 1))
	w.until("no defaults", schedulers("wrr rr wrr"))
}

func TestOneServiceInTwoFiles(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml": "store.path = \"services.d\"\n", "services.d/b.toml": service("web", 2), "services.d/c.toml": service("web", 3),
	})
	w.follow()
	w.waitFor("the first in order", "web=2 | DIR/services.d/c.toml:1: service web: is also defined at DIR/services.d/b.toml:1, which is used; rename or remove one of the two")
	w.write("services.d/a.toml", "\n"+service("web", 1))
	w.until("another claim", func(s snapshot) bool { return len(s.Problems) == 2 })
	w.write("services.d/b.toml", service("web", 4))
	w.until("the holder's change", func(s snapshot) bool { return strings.HasPrefix(describe(s), "web=4 |") })
	w.do(os.Remove(w.path("services.d/b.toml")))
	w.waitFor("the next in order", "web=1 | DIR/services.d/c.toml:1: service web: is also defined at DIR/services.d/a.toml:2, which is used; rename or remove one of the two")
	w.write("services.d/c.toml", service("dns", 3))
	w.waitFor("peace", "dns=3 web=1")
}

func TestOnlyServicesBelongInTheFolder(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "store.path = \"services.d\"\n",
		"services.d/a.toml": "mode = \"auto\"\n[service.web]\n[dns]\nvips = []\n" + service("a", 1),
		"services.d/b.toml": "services = 3\nvip = 1\n",
	})
	w.follow()
	const only = "only [services.NAME] and [vips.\"ADDRESS\"] tables belong in this file; "
	w.waitFor("five problems", "a=1 | DIR/services.d/a.toml:1: mode: "+only+"everything else belongs in DIR/vipd.toml"+
		` | DIR/services.d/a.toml:2: service: `+only+`did you mean "services"?`+
		` | DIR/services.d/a.toml:3: dns: `+only+`did you mean [services.dns]?`+
		` | DIR/services.d/b.toml:1: services: needs a table for each service, such as [services.web] | DIR/services.d/b.toml:2: vip: `+only+`did you mean "vips"?`)
}

func TestReloadReadsEverything(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": "store.path = \"services.d\"\n", "services.d/a.toml": service("a", 1)})
	w.follow()
	if problems := w.reload(); len(problems) != 0 {
		t.Errorf("reload without changes: problems = %v, want none", problems)
	}
	_, before := w.now()
	for i := range 20 {
		w.write("services.d/a.toml", service("a", 10+i))
		w.reload()
		if s, _ := w.now(); describe(s) != fmt.Sprint("a=", 10+i) {
			t.Fatalf("state after reload %d = %s, want a=%d", i, describe(s), 10+i)
		}
	}
	w.wantUnchanged("nothing is left to be told", 100*time.Millisecond)
	if _, after := w.now(); after != before+20 {
		t.Errorf("20 reloads with changes: snapshots = %d, want 20", after-before)
	}
	w.write("services.d/a.toml", "")
	w.reload()
	if s, _ := w.now(); s.Services.Len() != 0 {
		t.Errorf("state after a reload of an empty file = %s, want no services", describe(s))
	}
}

func TestWatchRunsOnce(t *testing.T) {
	w := newWorld(t, map[string]string{"vipd.toml": ""})
	w.follow()
	if err := w.source.Watch(t.Context(), nil); err == nil {
		t.Error("second call of Watch = nil, want an error")
	}
}

func TestAThousandFiles(t *testing.T) {
	const n = 1000
	files := map[string]string{"vipd.toml": "store.path = \"services.d\"\n"}
	for i := range n {
		files[fmt.Sprintf("services.d/%d.toml", i)] = service(fmt.Sprint("s", i), i&255)
	}
	w := newWorld(t, files)
	w.follow()
	before := w.until("all", func(s snapshot) bool { return s.Services.Len() == n && len(s.Problems) == 0 })
	w.write("services.d/500.toml", service("s500", 7))
	after := w.until("one change", func(s snapshot) bool { return s.Services.At("s500").VIPs[0].As4()[3] == 7 })
	changed := 0
	for _, name := range sortedNames(after) {
		if before.Services.At(name) != after.Services.At(name) {
			changed++
		}
	}
	if changed != 1 || after.Revision != before.Revision+1 {
		t.Errorf("after a change to one file: services with new pointers = %d, revision = %d before and %d after; want 1, and a revision that is higher by 1", changed, before.Revision, after.Revision)
	}
	for i := range n / 2 {
		w.do(os.Remove(w.path(fmt.Sprintf("services.d/%d.toml", i))))
	}
	w.until("half", func(s snapshot) bool { return s.Services.Len() == n/2 && !s.Services.Has("s499") })
}

// TestMainFileAmongTheOthers puts the main file into the directory that its [store].path names. The
// source must follow it like a main file in another directory.
func TestMainFileAmongTheOthers(t *testing.T) {
	main := "[store]\npath = \".\"\n"
	w := newWorld(t, map[string]string{"vipd.toml": main + service("a", 1), "b.toml": service("b", 1)})
	w.followWith(tomlfile.Options{Main: w.path("vipd.toml")}, func(s *tomlfile.Source) { s.SetPoll(time.Hour) })
	w.waitFor("both", "a=1 b=1")
	w.write("vipd.toml", main+service("a", 2))
	w.waitFor("another text in its place", "a=2 b=1")
	w.write("vipd.toml.new", main+service("a", 3))
	w.do(os.Rename(w.path("vipd.toml.new"), w.path("vipd.toml")))
	w.waitFor("another file in its place", "a=3 b=1")
}
