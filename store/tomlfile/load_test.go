package tomlfile_test

import (
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/store/tomlfile"
)

func TestLoad(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "mode = \"fast\"\nstore.path = \"services.d\"\ndefaults.scheduler = \"lc\"\n" + service("web", 1),
		"services.d/a.toml": service("a", 2), "services.d/b.toml": "mode = 1\n" + service("b", 3),
		"broken.toml": "mode =\n",
	})
	const stranger = "| DIR/services.d/b.toml:1: mode: only [services.NAME] and [vips.\"ADDRESS\"] tables belong in this file"
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
			t.Errorf("%s: Main exists = %t, want %t", file, r.Main != nil, want)
		}
	}
	r := tomlfile.Load(w.path("vipd.toml"))
	if got := r.Snapshot.Services.At("a").Scheduler; got != "lc" {
		t.Errorf("scheduler of a = %s, want lc from [defaults]", got)
	}
	if got := r.Main.Where("mode").Line; got != 1 || r.Main.Tree()["mode"] != "fast" || r.Main.File() != w.path("vipd.toml") {
		t.Errorf("mode = %v at line %d of %s, want fast at line 1 of vipd.toml", r.Main.Tree()["mode"], got, r.Main.File())
	}
}

// TestPathsOfChecks loads files that contain relative paths. Each path must be relative to the
// folder of the file that contains it, whatever the working directory is, and whether or not the
// file's name is relative.
func TestPathsOfChecks(t *testing.T) {
	check := func(name, health string) string { return service(name, 1) + "health = " + health + "\n" }
	w := newWorld(t, map[string]string{
		"vipd.toml": "store.path = \"services.d\"\ndefaults.health = { type = \"https\", ca_file = \"ca.pem\" }\n" +
			service("defaulted", 1) + check("own", `{ type = "grpc", ca_file = "tls/ca.pem", cert_file = "/etc/c.pem", key_file = "./k.pem" }`),
		"services.d/a.toml": service("inside", 1) + check("beside", `{ type = "grpc", ca_file = "../ca.pem" }`) +
			check("relative", `{ type = "exec", command = ["./check", "./arg"] }`) +
			check("absolute", `{ type = "exec", command = ["/bin/check", "./arg"] }`) +
			check("searched", `{ type = "exec", command = ["check", "./arg"] }`),
	})
	t.Chdir(w.dir)
	for _, file := range []string{w.path("vipd.toml"), "vipd.toml", "services.d/../vipd.toml"} {
		got := tomlfile.Load(file).Snapshot
		for name, want := range map[balancer.Name][]string{
			"defaulted": {"DIR/ca.pem", "", "", ""},
			"own":       {"DIR/tls/ca.pem", "/etc/c.pem", "DIR/k.pem", ""},
			"inside":    {"DIR/ca.pem", "", "", ""},
			"beside":    {"DIR/ca.pem", "", "", ""},
			"relative":  {"", "", "", "DIR/services.d/check ./arg"},
			"absolute":  {"", "", "", "/bin/check ./arg"},
			"searched":  {"", "", "", "check ./arg"},
		} {
			s := got.Services.At(name)
			if s == nil {
				t.Fatalf("%s: service %s is missing, want it loaded; problems = %v", file, name, got.Problems)
			}
			h := s.Health
			found := []string{h.CAFile, h.CertFile, h.KeyFile, strings.Join(h.Command, " ")}
			for i := range want {
				want[i] = w.in(want[i])
			}
			if !slices.Equal(found, want) {
				t.Errorf("%s: files and command of service %s =\n%q, want\n%q", file, name, found, want)
			}
		}
	}
}
