package modes

import (
	"context"

	"vipd/cmd/internal/config"
	"vipd/dataplane/host"
	"vipd/dataplane/ipvs"
)

// HostOptions returns the options for the host state that all modes share, such as addresses and
// sysctls. The caller adds the mode's needs.
func HostOptions(c config.Config) host.Options {
	o := host.DefaultOptions()
	o.Interface = c.Addresses.Interface
	o.Bind = c.Addresses.Bind
	o.StrictARP = c.Addresses.StrictARP
	o.ManageSysctls, o.RunDir = c.Host.ManageSysctls, c.RunDir
	o.ForeignServers = func() bool {
		foreign, err := ipvs.HasForeign(context.Background(), c.RunDir)
		return foreign || err != nil // after an error, assume that there are foreign servers
	}
	o.Variant, o.MasqueradeBit = host.Variant(c.IPTables.Backend), c.IPTables.MasqueradeBit
	o.ClampMSS = c.ClampMSS == config.AlwaysClampMSS
	o.FastPath, o.FastPathHardware = c.FastPath, c.FastPathHardware
	return o
}
