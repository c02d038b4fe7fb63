package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"net/netip"

	"vipd/cmd/internal/config"
)

// load writes text to a configuration file in a new directory, and loads the file. It returns the
// configuration, the problems (one per line, with the directory removed), and the directory.
func load(t *testing.T, text string) (config.Config, string, string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "vipd.toml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, problems, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, strings.ReplaceAll(p.String(), dir+"/", ""))
	}
	return c, strings.Join(lines, "\n"), dir
}

func TestDefaults(t *testing.T) {
	c, problems, _ := load(t, "")
	if d := cmp.Diff(config.Default(), c, cmpopts.EquateComparable(netip.Prefix{})); d != "" || problems != "" {
		t.Errorf("empty file: configuration (-want +got): %s\nproblems = %s, want none", d, problems)
	}
}

func TestPathsAreRelativeToTheFile(t *testing.T) {
	c, problems, dir := load(t, "state_dir = \"s\"\nrun_dir = \"/abs\"\n[store]\npath = \"../d\"\n[api]\nsocket = \"r/x.sock\"\n[defaults.health]\nca_file = \"ca.pem\"\n")
	checks := c.Defaults["health"].(map[string]any)
	got := []string{c.StateDir, c.RunDir, c.Store.Path, c.API.Socket, checks["ca_file"].(string)}
	want := []string{dir + "/s", "/abs", filepath.Dir(dir) + "/d", dir + "/r/x.sock", dir + "/ca.pem"}
	if d := cmp.Diff(want, got); d != "" || problems != "" {
		t.Errorf("paths (-want +got): %s\nproblems = %s, want none", d, problems)
	}
}

func TestProblemsNameThePlace(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"mode = \"ipvss\"", `vipd.toml:1: mode: "ipvss" is not one of auto, ipvs, nftables, iptables, userspace; did you mean "ipvs"?`},
		{"\nmodee = \"ipvs\"", `vipd.toml:2: modee: unknown field; did you mean "mode"?`},
		{"[sync]\nprobe_interval = \"1us\"", "vipd.toml:2: sync.probe_interval: 1us is too short; use 10ms or more"},
		{"[api]\nhttp = \"9890\"", `vipd.toml:2: api.http: "9890" is not ADDRESS:PORT, such as "127.0.0.1:9890"; "" turns it off`},
		{"[addresses]\ninterface = \"a/b\"", `vipd.toml:2: addresses.interface: "a/b" is not an interface's name: it has 1 to 15 characters, none of them a space, / or :`},
		{"run_dir = \"\"", "vipd.toml:1: run_dir: is empty; write a path, or leave the field out for the default"},
		{"[store]\nkind = \"etcd\"\n[addresses]\nallowed = [\"10.96.0.0/16\"]", ""},
		{"[store]\nkind = \"etcd\"\n[etcd]\nprefix = \"vipd\"\n[addresses]\nallowed = [\"10.96.0.0/16\"]", `vipd.toml:4: etcd.prefix: "vipd" and the usual spelling "/vipd" are different prefixes: hosts that use different spellings don't share services`},
		{"[store]\nkind = \"etcd\"\n[etcd]\nprefix = \"//vipd\"\n[addresses]\nallowed = [\"10.96.0.0/16\"]", `vipd.toml:4: etcd.prefix: "//vipd" and the usual spelling "/vipd" are different prefixes: hosts that use different spellings don't share services`},
		{"[etcd]\nprefix = \"/x\"", `vipd.toml:1: etcd: is used only by vipctl: vipd reads services from etcd only with store.kind = "etcd"`},
		{"addresses.allowed = [\"10.96.0.0/16\"]\n[store]\nkind = \"etcd\"\n[etcd]\nusername = \"me\"", "vipd.toml:4: etcd: username and password_file must be set together"},
		{"addresses.allowed = [\"10.96.0.0/16\"]\n[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [\"127.0.0.1:2379\"]", `vipd.toml:5: etcd.endpoints[0]: needs a URL with a port, such as "http://127.0.0.1:2379" or "https://etcd1:2379"`},
		{"addresses.allowed = [\"10.96.0.0/16\"]\nnode = \"a/b\"\n[store]\nkind = \"etcd\"", `vipd.toml:2: node: the name "a/b" of a node is not valid: use only printable characters, and neither / nor spaces`},
		{"node = \"a/b\"", ""},
		{"addresses.allowed = [\"10.96.0.0/16\"]\n[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [\"http://etcd1:23790000\"]", `vipd.toml:5: etcd.endpoints[0]: needs a URL with a port, such as "http://127.0.0.1:2379" or "https://etcd1:2379"`},
		{"[iptables]\nmasquerade_bit = 32", "vipd.toml:2: iptables.masquerade_bit: 32 is out of range; use 0 to 31"},
		{"[ipvs]\ntcp_timeout = \"-1s\"", "vipd.toml:2: ipvs.tcp_timeout: -1s is negative; use 0s or more"},
		{"[ipvs]\n\ntcpfin_timeout = \"1500ms\"", "vipd.toml:3: ipvs.tcpfin_timeout: 1.5s is not a whole number of seconds, the kernel's unit; use whole seconds from 1s to 596h31m23s, or 0s to keep the kernel's value"},
		{"[ipvs]\nudp_timeout = \"596h31m24s\"", "vipd.toml:2: ipvs.udp_timeout: 596h31m24s is longer than the kernel supports; use whole seconds from 1s to 596h31m23s, or 0s to keep the kernel's value"},
		{"[ipvs]\ntcp_timeout = \"1s\"\ntcpfin_timeout = \"596h31m23s\"\nudp_timeout = \"0s\"", ""},
		{"[tracing]\notlp_endpoint = \"x:4318\"", `vipd.toml:2: tracing.otlp_endpoint: "x:4318" is not a URL such as "http://127.0.0.1:4318"; "" turns it off`},
	} {
		if _, got, _ := load(t, c.text); got != c.want {
			t.Errorf("%q: problems =\n%s\nwant\n%s", c.text, got, c.want)
		}
	}
}

// TestSettingBelowATable writes top-level settings below a table's heading. The problem must
// explain where the setting belongs.
func TestSettingBelowATable(t *testing.T) {
	for f := range reflect.TypeFor[config.Config]().Fields() {
		if k := f.Type.Kind(); k == reflect.Struct || k == reflect.Map {
			continue
		}
		name := f.Tag.Get("toml")
		want := "vipd.toml:2: store." + name + ": unknown field; as a setting of vipd it belongs at the top of vipd.toml, before the first table"
		if _, got, _ := load(t, "[store]\n"+name+" = 1"); got != want {
			t.Errorf("problem = %s\nwant %s", got, want)
		}
	}
}

// TestUnboundedFleet loads configurations for etcd with and without addresses.allowed. Without it,
// a warning must name the setting and an example.
func TestUnboundedFleet(t *testing.T) {
	const etcd = "[store]\nkind = \"etcd\"\n[addresses]\n"
	for text, warned := range map[string]bool{"": false, etcd: true, etcd + "allowed = []": true, etcd + "allowed = [\"10.96.0.0/16\"]": false} {
		_, got, _ := load(t, text)
		if has := strings.Contains(got, "addresses.allowed: "+config.Unbounded); has != warned || !warned && got != "" {
			t.Errorf("%q: problems = %q, want warning = %v", text, got, warned)
		}
	}
}

func TestNoFileSaysWhatToDo(t *testing.T) {
	_, _, err := config.Load(filepath.Join(t.TempDir(), "none.toml"))
	if err == nil || !strings.Contains(err.Error(), "create the file, or set --config to another file") {
		t.Error(err)
	}
}

// TestProblemsByLine loads a file with several mistakes. Problems must be sorted by line.
func TestProblemsByLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vipd.toml")
	if err := os.WriteFile(file, []byte("zome = \"\"\nmode = \"?\"\n[etcd]\nprefix = \"\"\n[defaults]\nmss = 1\n[api]\nhttp = \"?\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, problems, err := config.Load(file)
	var lines []int
	for _, p := range problems {
		lines = append(lines, p.Origin.Line)
	}
	if err != nil || len(lines) < 4 || !slices.IsSorted(lines) {
		t.Errorf("error = %v, problem lines = %v, want 4 or more in order: %v", err, lines, problems)
	}
}
