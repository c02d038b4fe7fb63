package liveconfig_test

import (
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
		text, problems := tomlfile.Parse("vipd.toml", []byte("node = \"two\"\n[store]\nkind = \""+string(test.kind)+"\"\n"))
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
