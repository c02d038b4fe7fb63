package keepalived

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRouters reads a configuration with comments, a condition, a variable and included files. The
// result must contain the routers, but no uncertain values.
func TestRouters(t *testing.T) {
	files := map[string]string{
		"/etc/keepalived/keepalived.conf": `
global_defs {
	interface eth9
}
# vrrp_instance old {
! virtual_router_id 50
vrrp_instance a{
	interface eth0
	virtual_router_id 51 # the pair
}
include conf.d/*.conf
vrrp_instance c {
	@gw1 interface eth1
	virtual_router_id $ID
}
`,
		"/etc/keepalived/conf.d/b.conf": "vrrp_instance b\n{\ninterface eth1\nvirtual_router_id 52\n}\ninclude b.conf\n",
	}
	glob := func(pattern string) (all []string) {
		for name := range files {
			if ok, _ := filepath.Match(pattern, name); ok {
				all = append(all, name)
			}
		}
		return all
	}
	got := Routers(File, func(path string) string { return files[path] }, glob)
	b := slices.IndexFunc(got, func(r Router) bool { return r == Router{52, "eth1"} })
	if len(got) != 2+maxDepth || got[0] != (Router{51, "eth0"}) || b != 1 || got[len(got)-1] != (Router{}) {
		t.Errorf("Routers() = %v, want 51 on eth0, 52 on eth1 and an unknown router", got)
	}
}

// TestFileOf reads keepalived command lines that name the configuration file in each form, and a
// command line that names no file. The result must be the named file, or the default.
func TestFileOf(t *testing.T) {
	for args, want := range map[string]string{
		"keepalived -n -l": File, "keepalived -f a.conf": "a.conf", "keepalived -fa.conf -n": "a.conf",
		"keepalived --use-file a.conf": "a.conf", "keepalived --use-file=a.conf": "a.conf",
	} {
		if got := FileOf(strings.Fields(args)); got != want {
			t.Errorf("FileOf(%s) = %q, want %q", args, got, want)
		}
	}
}
