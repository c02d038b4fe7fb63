package doctor

import (
	"context"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// checkFleet checks whether etcd can be read and is protected by TLS, and whether the VIPs that
// services from etcd may claim are restricted.
func checkFleet(_ context.Context, o *observed) (found []Finding) {
	if o.Config.Store.Kind != config.EtcdStore {
		return
	}
	if len(o.Config.Addresses.Allowed) == 0 {
		found = append(found, warning("addresses.allowed of "+o.ConfigFile+" "+config.Unbounded, "", ""))
	}
	if exposed(o.Config.Etcd.Endpoints) {
		found = append(found, warning("the connection to etcd does not use TLS",
			"anyone on the path can read and change this host's services. Set up TLS in etcd, and set its certificates in [etcd]", ""))
	}
	switch s := o.Status; {
	case s == nil:
	case !s.Store.Connected:
		found = append(found, problem("etcd can't be read: "+s.Store.Error,
			"changes to services do not reach this host", "etcdctl --endpoints="+strings.Join(o.Config.Etcd.Endpoints, ",")+" endpoint health"))
	default:
		found = append(found, fine("services come from "+s.Store.Place))
	}
	return found
}

// exposed reports whether any URL refers to another host without using TLS.
func exposed(urls []string) bool {
	return slices.ContainsFunc(urls, func(u string) bool {
		host, plain := strings.CutPrefix(u, "http://")
		return plain && !strings.HasPrefix(host, "127.") && !strings.HasPrefix(host, "[::1]") && !strings.HasPrefix(host, "localhost:")
	})
}
