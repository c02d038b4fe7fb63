package userspace

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
)

func TestRender(t *testing.T) {
	f := frontendAt("10.96.0.10:80", netip.MustParseAddrPort("192.168.1.11:8080"), netip.MustParseAddrPort("192.168.1.12:8080"))
	f.AffinityTimeout, f.ConnectTimeout = time.Hour, time.Second
	f.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	f.ProxyProtocol = balancer.ProxyProtocolV2
	f.Backends[0].MaxConnections = 5
	f.Backends[1].State, f.Backends[1].Weight = balancer.Draining, 0
	g := frontendAt("[fd00:96::10]:53/udp")
	g.Service, g.Port = "dns", ""
	h := frontendAt("10.96.0.10:7000-7009/udp", netip.MustParseAddrPort("192.168.1.11:9000"))
	got := Render([]*balancer.Frontend{f, g, h})
	const want = `# service web, port p
listen 10.96.0.10:80/tcp scheduler wrr affinity 1h0m0s from 10.0.0.0/8 connect_timeout 1s proxy_protocol v2
  backend 192.168.1.11:8080 weight 1 max_connections 5
  backend 192.168.1.12:8080 weight 0 draining
# service dns
listen [fd00:96::10]:53/udp scheduler wrr idle_timeout 1m0s
  none: reject
# service web, port p
listen 10.96.0.10:7000-7009/udp scheduler wrr idle_timeout 1m0s
  backend 192.168.1.11:9000-9009 weight 1
`
	if got != want {
		t.Errorf("Render =\n%s\nwant\n%s", got, want)
	}
}
