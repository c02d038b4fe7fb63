package liveconfig_test

import (
	"reflect"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/cmd/vipd/daemon/internal/liveconfig"
	"vipd/store/tomlfile"
)

// TestNode: services in files follow a new name of the node. A node of a fleet is known there by the name that it began with, and says that a
// new one takes a restart.
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
			t.Errorf("%s: the file is not taken", test.kind)
		}
		is, problems := c.Now()
		if is.Node != test.node || len(problems) != test.problems {
			t.Errorf("%s: the node is %s, want %s; problems: %v", test.kind, is.Node, test.node, problems)
		}
	}
}

// TestStart: what takes a restart stays as it was when vipd started, beside what is followed.
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
		t.Fatal("the file is not taken")
	}
	is, problems := c.Now()
	if len(problems) != 3 {
		t.Errorf("problems: %v, want one each of addresses, userspace and iptables", problems)
	}
	if len(is.Addresses.Allowed) != 1 || len(is.Addresses.AllowedEndpoints) != 1 || is.Mode != config.UserspaceMode {
		t.Errorf("allowed %v and %v, mode %s; all are followed", is.Addresses.Allowed, is.Addresses.AllowedEndpoints, is.Mode)
	}
	is.Addresses.Allowed, is.Addresses.AllowedEndpoints = start.Addresses.Allowed, start.Addresses.AllowedEndpoints
	if !reflect.DeepEqual(is.Addresses, start.Addresses) || is.Userspace != start.Userspace || is.IPTables != start.IPTables {
		t.Errorf("in use are %+v, %+v, %+v, which take a restart", is.Addresses, is.Userspace, is.IPTables)
	}
}
