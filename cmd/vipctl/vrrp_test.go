package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	urfave "github.com/urfave/cli/v2"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
)

// TestDrainWithoutVipd drains nodes while vipd is stopped. The drain of another node must continue,
// because its endpoints are in etcd. The drain of this host must fail, because only vipd can hand
// over its VIPs.
func TestDrainWithoutVipd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vipd.toml")
	const text = "node = \"gw1\"\nrun_dir = \"run\"\n[store]\nkind = \"etcd\"\n[ownership]\nenabled = true\nby = \"vrrp\"\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := flag.NewFlagSet("drain", flag.ContinueOnError)
	flags.String("config", path, "")
	c := &cli.Call{Context: t.Context(), Flags: urfave.NewContext(nil, flags, nil)}
	if left, err := drainByVRRP(c, "gw2", true); !left || err != nil {
		t.Errorf("endpoints left on gw2 = %t, error = %v; want true and no error", left, err)
	}
	const want = "only a running vipd can hand over this host's VIPs: "
	if _, err := drainByVRRP(c, "gw1", true); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("gw1: error = %v, want %q", err, want)
	}
}

// TestStandbyOfOtherGroups puts a host on standby. Its vipd owner has a group that its vipd does
// not have. The standby must be refused, and the error must name the remedy.
func TestStandbyOfOtherGroups(t *testing.T) {
	c := &cli.Call{Flags: urfave.NewContext(nil, flag.NewFlagSet("node", flag.ContinueOnError), nil)}
	o := api.Ownership{Node: "gw1", Groups: []api.OwnerGroup{{GroupStatus: vrrp.GroupStatus{Name: "main", State: vrrp.Active}}}}
	const want = "vipd and vipd owner have different groups: systemctl restart vipd vipd-owner"
	if _, err := setStandby(c, &o, true); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want %q", err, want)
	}
}
