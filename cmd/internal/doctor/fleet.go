package doctor

import (
	"context"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// checkFleet looks at what a host takes from etcd, and whether it does.
func checkFleet(_ context.Context, v *visit) {
	if v.Config.Store.Kind != config.EtcdStore {
		return
	}
	if len(v.Config.Addresses.Allowed) == 0 {
		v.add(warning("addresses.allowed of "+v.ConfigFile+" "+config.Unbounded, "", ""))
	}
	if exposed(v.Config.Etcd.Endpoints) {
		v.add(warning("etcd is reached without TLS",
			"anyone on the path can read and change what this host does. Give etcd certificates, and name them in [etcd]", ""))
	}
	switch s := v.Status; {
	case s == nil:
	case !s.Store.Connected:
		v.add(problem("etcd can't be read: "+s.Store.Error,
			"changes of services do not come here", "etcdctl --endpoints="+strings.Join(v.Config.Etcd.Endpoints, ",")+" endpoint health"))
	default:
		v.add(fine("services come from " + s.Store.Place))
	}
}

// exposed reports whether one of the URLs leads to another host without TLS.
func exposed(urls []string) bool {
	return slices.ContainsFunc(urls, func(u string) bool {
		host, plain := strings.CutPrefix(u, "http://")
		return plain && !strings.HasPrefix(host, "127.") && !strings.HasPrefix(host, "[::1]") && !strings.HasPrefix(host, "localhost:")
	})
}
