package tomlfile_test

import (
	"strings"
	"testing"

	"vipd/store/tomlfile"
)

func TestLoad(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "mode = \"fast\"\nstore.path = \"services.d\"\ndefaults.scheduler = \"lc\"\n" + service("web", 1),
		"services.d/a.toml": service("a", 2), "services.d/b.toml": "mode = 1\n" + service("b", 3),
		"broken.toml": "mode =\n",
	})
	const stranger = "| DIR/services.d/b.toml:1: mode: only [services.NAME] tables belong in this file"
	for file, want := range map[string]string{
		"vipd.toml":         "a=2 b=3 web=1 " + stranger + "; everything else belongs in DIR/vipd.toml",
		"services.d":        "a=2 b=3 " + stranger,
		"services.d/a.toml": "a=2",
		"broken.toml":       "| DIR/broken.toml:1: not valid TOML: expected value but found '\\n' instead",
		"none.toml":         "disconnected | DIR/none.toml: can't be read: no such file or directory",
	} {
		r := tomlfile.Load(w.path(file))
		if got := describe(r.Snapshot); got != w.in(want) {
			t.Errorf("%s:\n got %s\nwant %s", file, got, w.in(want))
		}
		if want := strings.HasSuffix(file, ".toml") && file != "broken.toml" && file != "none.toml"; (r.Main != nil) != want {
			t.Errorf("%s: got a document: %t, want %t", file, r.Main != nil, want)
		}
	}
	r := tomlfile.Load(w.path("vipd.toml"))
	if got := r.Snapshot.Services.At("a").Scheduler; got != "lc" {
		t.Errorf("a has the scheduler %s, want that of [defaults]", got)
	}
	if got := r.Main.Where("mode").Line; got != 1 || r.Main.Tree()["mode"] != "fast" || r.Main.File() != w.path("vipd.toml") {
		t.Errorf("mode is %v in line %d of %s", r.Main.Tree()["mode"], got, r.Main.File())
	}
}
