package liveconfig_test

import (
	"reflect"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/store/tomlfile"
)

// TestNode changes the node's name. If services come from files, the new name must apply. A node of
// a fleet must keep its first name, and report that a new name needs a restart.
func TestNode(t *testing.T) {
	for _, test := range []struct {
		kind     config.StoreKind
		node     string
		problems int
	}{{config.FileStore, "two", 0}, {config.EtcdStore, "one", 1}} {
		start := config.Default()
		start.Node, start.Store.Kind = "one", test.kind
		c := liveconfig.New("vipd.toml", "", start, func() {})
		text, problems := tomlfile.Parse("vipd.toml", []byte("node = \"two\"\n[addresses]\nallowed = [\"10.96.0.0/16\"]\n[store]\nkind = \""+string(test.kind)+"\"\n"))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if !c.Follow(text) {
			t.Errorf("%s: Follow() = false, want true", test.kind)
		}
		current, problems := c.Now()
		if current.Node != test.node || len(problems) != test.problems {
			t.Errorf("%s: node = %s, want %s; problems = %v", test.kind, current.Node, test.node, problems)
		}
	}
}

// TestOwnershipNeedsTwoRestarts changes [ownership]. The problem must name both units, because vipd
// owner also reads the file only when it starts.
func TestOwnershipNeedsTwoRestarts(t *testing.T) {
	start := config.Default()
	start.Ownership.Enabled = true
	c := liveconfig.New("vipd.toml", "", start, func() {})
	text, problems := tomlfile.Parse("vipd.toml", []byte("[ownership]\nenabled = true\n[ownership.vrrp.main]\nrouter_id = 51\n"))
	if len(problems) > 0 || !c.Follow(text) {
		t.Fatal(problems)
	}
	const want = "has changed: restart vipd and vipd owner to apply it: systemctl restart vipd vipd-owner"
	if _, problems = c.Now(); len(problems) != 1 || problems[0].Text != want {
		t.Errorf("problems = %v, want %q", problems, want)
	}
}

// TestStart changes settings that need a restart and settings that do not. Only settings that need
// no restart may change.
func TestStart(t *testing.T) {
	start := config.Default()
	c := liveconfig.New("vipd.toml", "", start, func() {})
	text, problems := tomlfile.Parse("vipd.toml", []byte(`mode = "userspace"
[addresses]
bind = false
allowed = ["10.96.0.0/16"]
allowed_endpoints = ["192.168.1.0/24"]
[userspace]
intercept = "bind"
[iptables]
masquerade_bit = 3
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if !c.Follow(text) {
		t.Fatal("Follow() = false, want true")
	}
	current, problems := c.Now()
	if len(problems) != 3 {
		t.Errorf("problems = %v, want one problem each for addresses, userspace and iptables", problems)
	}
	if len(current.Addresses.Allowed) != 1 || len(current.Addresses.AllowedEndpoints) != 1 || current.Mode != config.UserspaceMode {
		t.Errorf("allowed = %v and %v, mode = %s; want all new values", current.Addresses.Allowed, current.Addresses.AllowedEndpoints, current.Mode)
	}
	current.Addresses.Allowed, current.Addresses.AllowedEndpoints = start.Addresses.Allowed, start.Addresses.AllowedEndpoints
	if !reflect.DeepEqual(current.Addresses, start.Addresses) || current.Userspace != start.Userspace || current.IPTables != start.IPTables {
		t.Errorf("settings in use = %+v, %+v, %+v; want the old values until a restart", current.Addresses, current.Userspace, current.IPTables)
	}
}
