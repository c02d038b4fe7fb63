package main

import (
	"flag"
	"strings"
	"testing"

	urfave "github.com/urfave/cli/v2"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
)

// TestStandbyOfOtherGroups puts a host on standby whose vipd owner has a group that vipd does not
// have. It must refuse with the fix.
func TestStandbyOfOtherGroups(t *testing.T) {
	c := &cli.Call{Flags: urfave.NewContext(nil, flag.NewFlagSet("node", flag.ContinueOnError), nil)}
	o := api.Ownership{Node: "gw1", Groups: []api.OwnerGroup{{GroupStatus: vrrp.GroupStatus{Name: "main", State: vrrp.Active}}}}
	const want = "vipd and vipd owner have different groups: systemctl restart vipd vipd-owner"
	if _, err := setStandby(c, &o, true); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want %q", err, want)
	}
}
