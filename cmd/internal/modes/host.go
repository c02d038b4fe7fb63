package modes

import (
	"context"

	"vipd/cmd/internal/config"
	"vipd/dataplane/host"
	"vipd/dataplane/ipvs"
)

// HostOptions are the options of what all modes share: addresses, the guard and sysctls. What depends on the mode is
// Mode.Host.
func HostOptions(c config.Config) host.Options {
	o := host.DefaultOptions()
	o.Interface, o.Bind, o.StrictARP = c.Addresses.Interface, c.Addresses.Bind, c.Addresses.StrictARP
	o.ManageSysctls, o.RunDir = c.Host.ManageSysctls, c.RunDir
	o.ForeignServers = func() bool {
		foreign, err := ipvs.HasForeign(context.Background(), c.RunDir)
		return foreign || err != nil // what can't be seen may be there
	}
	o.Variant, o.MasqueradeBit = host.Variant(c.IPTables.Backend), c.IPTables.MasqueradeBit
	return o
}
