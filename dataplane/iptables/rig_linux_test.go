package iptables

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// rig is a dataplane on a host. The host connects a client to a server that has many addresses.
type rig struct {
	*testing.T
	d      *Dataplane
	client *lab.NS
	server *lab.NS
}

// vip returns the frontends' address.
func vip() netip.Addr { return netip.MustParseAddr("10.96.0.10") }

// eachBackend runs a test with each iptables backend.
func eachBackend(t *testing.T, f func(r *rig)) {
	for _, backend := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(backend), func(t *testing.T) { f(newRig(t, backend)) })
	}
}

func newRig(t *testing.T, backend xtables.Variant) *rig {
	t.Helper()
	lab.Require(t)
	l := lab.New(t)
	r := &rig{T: t, client: l.Add("client"), server: l.Add("server")}
	l.Link(l.Host(), r.client, "10.1.0.1/24", "10.1.0.2/24")
	l.Link(l.Host(), r.server, "10.2.0.1/24", "10.2.0.2/24")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	r.client.Default("10.1.0.1")
	r.server.Default("10.2.0.1")
	for i := 3; i < 8; i++ {
		r.server.AddAddr("lo", fmt.Sprintf("10.2.0.%d/32", i))
		l.Host().Route(fmt.Sprintf("10.2.0.%d/32", i), "10.2.0.2")
	}
	for i := 2; i < 8; i++ {
		for _, network := range []string{"tcp", "udp"} {
			r.server.Echo(network, fmt.Sprint("s", i), netip.AddrPortFrom(r.address(i), 8080))
		}
	}
	r.forgetFlows()
	r.d = r.open(backend)
	t.Cleanup(func() {
		if err := r.d.Close(context.Background(), false); err != nil {
			t.Error("closing: ", err)
		}
	})
	return r
}

// forgetFlows deletes the flows that earlier tests left in conntrack.
func (r *rig) forgetFlows() {
	r.Helper()
	c, err := conntrack.Open()
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	keys := map[balancer.Key]bool{}
	for _, p := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		keys[balancer.Key{Addr: vip(), Port: 80, Proto: p}] = true
	}
	if _, err := c.Cut(r.Context(), keys, nil); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) open(backend xtables.Variant) *Dataplane {
	r.Helper()
	d, err := New(context.Background(), Options{Variant: backend})
	if err != nil {
		r.Fatal(err)
	}
	if _, err := d.Observe(context.Background()); err != nil {
		r.Fatal(err)
	}
	return d
}

func (r *rig) address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 2, 0, byte(i)})
}

// web returns a frontend whose endpoints are the servers with these numbers.
func (r *rig) web(proto balancer.Protocol, servers ...int) *balancer.Frontend {
	f := &balancer.Frontend{Key: balancer.Key{Addr: vip(), Port: 80, Proto: proto}, Service: "web", Port: "http", Policy: balancer.Policy{Scheduler: balancer.RoundRobin}}
	for _, i := range servers {
		f.Backends = append(f.Backends, balancer.Backend{Addr: netip.AddrPortFrom(r.address(i), 8080), State: balancer.Active, Weight: 1})
	}
	return f
}

func (r *rig) apply(frontends ...*balancer.Frontend) {
	r.Helper()
	var batch []dataplane.Change
	for _, f := range frontends {
		batch = append(batch, dataplane.Change{Key: f.Key, New: f})
	}
	if err := r.d.Apply(context.Background(), batch); err != nil {
		r.Fatal(err)
	}
}

// ask opens a connection. It returns the connection and the name of the server that answers.
func (r *rig) ask(proto balancer.Protocol) (net.Conn, string) {
	r.Helper()
	c, err := r.client.Dial(r.Context(), string(proto), netip.AddrPortFrom(vip(), 80).String())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	answer, err := lab.Ask(c)
	if err != nil {
		r.Fatal(err)
	}
	return c, answer.Server
}
