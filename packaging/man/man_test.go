package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/program"
)

// TestPages writes the pages of the built programs. There must be a page for each command, and
// vipd.toml(5) must describe the fields of a service and the daemon's settings. groff must accept
// all pages without a warning.
func TestPages(t *testing.T) {
	bin := program.Bin(t)
	t.Chdir("../..")
	out := t.TempDir()
	if err := write(bin, out, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	h, err := asked(bin, "vipctl")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"vipctl.1", "vipd.8", "vipd.toml.5"}
	for _, e := range h.commands() {
		names = append(names, "vipctl-"+e.term+".1")
	}
	files, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil || len(files) != len(names) || len(names) < 28 {
		t.Errorf("number of pages = %d, error = %v, want %d: %v", len(files), err, len(names), names)
	}
	page, err := os.ReadFile(filepath.Join(out, "vipd.toml.5"))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fields(reflect.TypeFor[balancer.Service](), reflect.TypeFor[balancer.Port](), reflect.TypeFor[balancer.Endpoint](), reflect.TypeFor[balancer.Discover](), reflect.TypeFor[balancer.Health]()) {
		if !strings.Contains(string(page), `\fB`+field) && !strings.Contains(string(page), ", "+field) {
			t.Errorf("vipd.toml(5) lacks the field %s, want it", field)
		}
	}
	for _, setting := range []string{`mode = "auto"`, `[store]`, `masquerade_bit = 14`} {
		if !strings.Contains(string(page), escaped(setting)) {
			t.Errorf("vipd.toml(5) lacks %s, want it", setting)
		}
	}
	lab.Need(t, "groff")
	for _, file := range files {
		if output, err := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", file).CombinedOutput(); err != nil || len(output) > 0 {
			t.Errorf("groff: error = %v, output = %s; want neither", err, output)
		}
	}
}

// fields returns the TOML names of the structs' fields.
func fields(types ...reflect.Type) (names []string) {
	for _, typ := range types {
		for _, f := range reflect.VisibleFields(typ) {
			if name := f.Tag.Get("toml"); name != "" && name != "-" {
				names = append(names, name)
			}
		}
	}
	return names
}
