package doctor

import (
	"net/netip"
	"testing"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
)

func TestFindingsOfEtcd(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "a fleet that is trusted with everything", change: func(m *fakeHost) {
			m.Config.Store.Kind, m.Config.Etcd.Endpoints = config.EtcdStore, []string{"http://127.0.0.1:2379", "http://etcd2:2379"}
			m.Status.Store = api.Store{Error: "connection refused"}
		}, want: []string{
			"fleet: warning: addresses.allowed of vipd.toml " + config.Unbounded,
			"fleet: warning: the connection to etcd does not use TLS",
			"fleet: problem: etcd can't be read: connection refused",
		}},
		{name: "a fleet with bounds", change: func(m *fakeHost) {
			m.Config.Store.Kind, m.Config.Etcd.Endpoints = config.EtcdStore, []string{"https://etcd1:2379"}
			m.Config.Addresses.Allowed = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
			m.Status.Store = api.Store{Connected: true}
		}},
	})
}
