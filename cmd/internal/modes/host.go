package modes

import (
	"vipd/cmd/internal/config"
	"vipd/dataplane/host"
)

// HostOptions are the options of what all modes share: addresses, the guard and sysctls. What depends on the mode is
// Mode.Forwards and Mode.Marks.
func HostOptions(c config.Config) host.Options {
	o := host.DefaultOptions()
	o.Interface, o.Bind, o.StrictARP = c.Addresses.Interface, c.Addresses.Bind, c.Addresses.StrictARP
	o.ManageSysctls, o.RunDir = c.Host.ManageSysctls, c.RunDir
	o.Backend, o.MasqueradeBit = host.Backend(c.IPTables.Backend), c.IPTables.MasqueradeBit
	return o
}
