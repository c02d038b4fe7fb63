package balancer

import (
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer/snap"
)

// TestRealServer compiles a service for a host that has the address of the service's endpoint. With
// forward = "dr" and RealServer, the host must hold the VIP without answering ARP for it, and must
// have no frontend. A host that may own the VIP must serve it instead.
func TestRealServer(t *testing.T) {
	own, other, vip := netip.MustParseAddr("192.168.1.11"), netip.MustParseAddr("192.168.1.12"), netip.MustParseAddr("10.96.0.10")
	for name, test := range map[string]struct {
		env     Env
		forward Forward
		hold    Hold
		direct  bool
		warned  bool
	}{
		"a real server":           {env: Env{RealServer: true}, forward: DRForward, direct: true},
		"a gateway":               {forward: DRForward},
		"not an endpoint":         {env: Env{RealServer: true, Local: []netip.Addr{other}}, forward: DRForward},
		"address translation":     {env: Env{RealServer: true}, forward: NATForward},
		"a possible owner":        {env: Env{RealServer: true, MayOwn: true}, forward: DRForward, hold: HoldOne, warned: true},
		"a VIP of other owners":   {env: Env{RealServer: true}, forward: DRForward, hold: HoldOne, direct: true},
		"an owner of another VIP": {env: Env{RealServer: true, MayOwn: true}, forward: DRForward, direct: true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.env.Local == nil {
				test.env.Local = []netip.Addr{own}
			}
			test.env.Capabilities.Protocols, test.env.Capabilities.Forwards = []Protocol{TCP}, []Forward{NATForward, DRForward}
			s := &Service{
				Name: "web", VIPs: []netip.Addr{vip}, Ports: []Port{{Port: 80, TargetPort: 80, Protocol: TCP}},
				Policy: Policy{Forward: test.forward}, Endpoints: []Endpoint{{Address: own, Weight: 1}},
			}
			in := Inputs{Services: snap.Map[Name, *Service]{}.Set("web", s)}
			if test.hold != "" {
				in.Pools = in.Pools.Set("p", &Pool{CIDRs: []netip.Prefix{netip.PrefixFrom(vip, 24)}, VIPPolicy: VIPPolicy{Hold: test.hold}})
			}
			d := Compile(test.env, in)
			if got := d.Direct.At(vip) == "web"; got != test.direct {
				t.Errorf("holds the VIP without answering ARP = %v, want %v", got, test.direct)
			}
			if got := d.Frontends.Len(); (got == 0) != test.direct {
				t.Errorf("frontends = %d, want none if the VIP is held as a real server, otherwise at least one", got)
			}
			warned := false
			if p := d.Problems.At("web"); p != nil {
				for _, p := range *p {
					warned = warned || strings.Contains(p.Text, "is not held for direct routing")
				}
			}
			if warned != test.warned {
				t.Errorf("warning that the VIP is not held for direct routing = %v, want %v", warned, test.warned)
			}
		})
	}
}
