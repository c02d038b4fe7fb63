package bgp

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/program"
)

// gateways is a network with three hosts that run a vipd each. A router forwards clients to them by
// ECMP, and four endpoints are behind them.
type gateways struct {
	*world
	clients []netip.AddrPort
}

func newGateways(t *testing.T, mode string) *gateways {
	t.Helper()
	g := &gateways{world: &world{Lab: lab.New(t), t: t}}
	g.router = g.Add("router")
	front, back := g.Bridge("front"), g.Bridge("back")
	front.Join(g.router, "10.9.0.1/24")
	for i := range 24 { // with so many clients, the kernel sends all of them to one gateway only once in ten million runs
		client := fmt.Sprintf("10.77.0.%d", 1+i)
		g.router.AddAddr("lo", client+"/32")
		g.clients = append(g.clients, netip.AddrPortFrom(netip.MustParseAddr(client), 0))
	}
	endpoints := ""
	for i := range 4 {
		name, addr := fmt.Sprintf("s%d", i), fmt.Sprintf("10.8.0.%d", 20+i)
		server := g.Add(name)
		back.Join(server, addr+"/24")
		server.Echo("tcp", name, netip.MustParseAddrPort(addr+":8080"))
		endpoints += fmt.Sprintf("{ address = %q }, ", addr)
	}
	bin := program.Bin(t)
	for i := range 3 {
		gw := g.Add(fmt.Sprintf("gw%d", i))
		front.Join(gw, fmt.Sprintf("10.9.0.%d/24", 11+i))
		back.Join(gw, fmt.Sprintf("10.8.0.%d/24", 11+i))
		gw.Default("10.9.0.1")
		dir := t.TempDir()
		g.start(gw, filepath.Join(bin, "vipd"), "--log-level", "error", "--config", g.file("vipd.toml", fmt.Sprintf(`
mode = %[1]q
node = "gw%[2]d"
state_dir = %[3]q
run_dir = %[3]q
api.socket = "%[3]s/vipd.sock"
api.http = ""
[services.web]
vips = [%[4]q]
ports = [{ port = 80, target_port = 8080 }]
endpoints = [%[5]s]
scheduler = "mh"
snat = "always" # so that an endpoint sees which gateway a client came by
`, mode, i, dir, vip4, endpoints)))
	}
	return g
}

// lead makes the router forward clients to the gateways in to.
func (g *gateways) lead(to ...int) {
	g.t.Helper()
	args := []string{"route", "replace", vip4}
	for _, i := range to {
		args = append(args, "nexthop", "via", fmt.Sprintf("10.9.0.%d", 11+i))
	}
	g.router.Exec("ip", args...)
}

// endpoints connects each client. It returns each client's endpoint, and the number of gateways
// that were used.
func (g *gateways) endpoints() (byClient map[netip.AddrPort]string, by int, err error) {
	byClient = map[netip.AddrPort]string{}
	through := map[netip.Addr]bool{}
	for _, client := range g.clients {
		c, err := g.router.DialFrom(g.t.Context(), "tcp", client, vip4+":80")
		if err != nil {
			return nil, 0, err
		}
		answer, err := lab.Ask(c)
		_ = c.Close()
		if err != nil {
			return nil, 0, err
		}
		byClient[client], through[answer.Client.Addr()] = answer.Server, true
	}
	return byClient, len(through), nil
}

// TestMaglev connects clients through each gateway alone, through all gateways, and without one
// gateway. Each client must always reach the same endpoint.
func TestMaglev(t *testing.T) {
	for _, mode := range []string{"userspace", "iptables", "nftables"} {
		t.Run(mode, func(t *testing.T) { maglev(t, mode) })
	}
}

// TestIPVSMaglev makes the same check as TestMaglev, but in ipvs mode.
func TestIPVSMaglev(t *testing.T) {
	lab.NeedIPVS(t)
	maglev(t, "ipvs")
}

func maglev(t *testing.T, mode string) {
	lab.Need(t, "iptables", "nft")
	g := newGateways(t, mode)
	var want map[netip.AddrPort]string
	for i := range 3 {
		g.lead(i)
		lab.Eventually(t, 30*time.Second, fmt.Sprintf("answers through gw%d", i), func() error {
			byClient, _, err := g.endpoints()
			if want == nil && err == nil {
				want = byClient
			}
			return err
		})
		g.wantEndpoints(fmt.Sprintf("through gw%d alone", i), want, 1)
	}
	served := map[string]bool{}
	for _, server := range want {
		served[server] = true
	}
	if len(served) < 2 {
		t.Errorf("%d clients: endpoints = %d, want at least 2", len(g.clients), len(served))
	}
	g.lead(0, 1, 2)
	g.wantEndpoints("by ECMP", want, 2)
	g.lead(0, 2)
	g.wantEndpoints("without gw1", want, 2)
}

// wantEndpoints checks that each client reaches its endpoint in want. least is the minimum number
// of gateways in use.
func (g *gateways) wantEndpoints(when string, want map[netip.AddrPort]string, least int) {
	g.t.Helper()
	var got map[netip.AddrPort]string
	var by int
	lab.Eventually(g.t, 30*time.Second, when, func() (err error) { got, by, err = g.endpoints(); return err })
	moved := 0
	for client, server := range want {
		if got[client] != server {
			moved++
		}
	}
	if moved > 0 || by < least {
		g.t.Errorf("%s: clients on a different endpoint = %d of %d, want 0; gateways in use = %d", when, moved, len(want), by)
	}
}
